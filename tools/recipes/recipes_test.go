// Package recipes checks docs/recipes.md. It reads the files there with the parsers of cron, systemd,
// Kubernetes, GitHub and the shell, starts the servers that they describe, and runs their commands.
package recipes

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

const page = "../../docs/recipes.md"

// patience bounds the wait for an expected event on a busy machine.
const patience = 30 * time.Second

// sectionText returns the text of a section of the page; section "" is the whole page.
func sectionText(t *testing.T, section string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	part := string(text)
	if section != "" {
		_, rest, ok := strings.Cut(part, "\n## "+section+"\n")
		if !ok {
			t.Fatalf("%s has no section %q", page, section)
		}
		part, _, _ = strings.Cut(rest, "\n## ")
	}
	return part
}

// blocksOf returns the files of one kind in a section of the page; section "" is the whole page.
func blocksOf(t *testing.T, section, kind string) []string {
	t.Helper()
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```").FindAllStringSubmatch(sectionText(t, section), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("section %q of %s has no block of %s", section, page, kind)
	}
	return found
}

// machine holds folders that imitate a machine with holdfast and the programs of the recipes.
type machine struct {
	t        *testing.T
	dir, url string
}

// programs are the programs that the recipes call. Each writes its name to the file "ran".
var programs = []string{
	"usr/local/bin/report.sh", "usr/local/bin/rotate.sh", "usr/local/bin/backup", "usr/local/bin/scheduler",
	"app/report", "app/scheduler", "work/deploy.sh", "work/step-one", "work/step-two",
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), url: "redis://" + redistest.Start(t, nil).Addr()}
	for _, folder := range []string{"usr/bin", "usr/local/bin", "app", "work", "run/locks", "etc/holdfast"} {
		if err := os.MkdirAll(filepath.Join(m.dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range programs {
		m.write(program, "#!/bin/sh\nbasename $0 >>"+m.path("ran")+"\n", 0o755)
	}
	m.write("run/locks/url", m.url, 0o600)
	m.write("etc/holdfast/backend", m.url, 0o600)
	if err := os.Symlink(buildHoldfast(t), m.path("usr/bin/holdfast")); err != nil {
		t.Fatal(err)
	}
	return m
}

// buildHoldfast returns the path of the program. It builds the program once.
func buildHoldfast(t *testing.T) string {
	t.Helper()
	buildOnce.Do(func() {
		if buildDir, buildFailed = os.MkdirTemp("", "holdfast-recipes-"); buildFailed != nil {
			return
		}
		out, err := exec.Command("go", "build", "-buildvcs=false", "-o", buildDir, "../../cmd/holdfast").CombinedOutput()
		if err != nil {
			buildFailed = errors.Join(err, errors.New(string(out)))
		}
	})
	if buildFailed != nil {
		t.Fatal(buildFailed)
	}
	return filepath.Join(buildDir, "holdfast")
}

var (
	buildOnce   sync.Once
	buildDir    string
	buildFailed error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// moveFolders replaces the folders that a recipe names by those of m.
func (m *machine) moveFolders(text string) string {
	return regexp.MustCompile(`(^|[\s=:])/(usr/local|usr/bin|app|run|etc)\b`).ReplaceAllString(text, "${1}"+m.dir+"/$2")
}

// newCommand returns a command of a program of m, in a separate process group.
func (m *machine) newCommand(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = m.path("work")
	cmd.Env = []string{
		"PATH=" + m.path("usr/bin") + ":" + os.Getenv("PATH"), "HOME=" + m.path("work"), "HOLDFAST_BACKEND=" + m.url,
		"ENVIRONMENT=production", "GITHUB_RUN_ID=1", "CI_JOB_ID=1",
	}
	cmd.Stderr = os.Stderr
	return cmd
}

// checkRan runs a command and checks that it started the programs.
func (m *machine) checkRan(cmd *exec.Cmd, programs ...string) {
	m.t.Helper()
	if err := cmd.Run(); err != nil {
		m.t.Errorf("%q: %v", cmd.Args, err)
	}
	m.checkPrograms(programs...)
}

// checkPrograms checks which programs have run.
func (m *machine) checkPrograms(programs ...string) {
	m.t.Helper()
	text, _ := os.ReadFile(m.path("ran")) // none: nothing has run
	if got := strings.Join(strings.Fields(string(text)), " "); got != strings.Join(programs, " ") {
		m.t.Errorf("ran %q, want %q", got, programs)
	}
	os.Remove(m.path("ran"))
}

// checkLeads starts an elect command, waits until it has started its program, and stops it.
func (m *machine) checkLeads(cmd *exec.Cmd, program string) {
	m.t.Helper()
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if text, _ := os.ReadFile(m.path("ran")); len(text) > 0 { // none yet
			break
		}
		if time.Now().After(end) {
			m.t.Fatalf("%q does not start its program", cmd.Args)
		}
	}
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
		m.t.Errorf("%q after SIGTERM: %v", cmd.Args, err)
	}
	m.checkPrograms(program)
}

func TestCronLines(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	table := m.moveFolders(blocksOf(t, "cron, on several machines", "cron")[0])
	m.write("crontab", table, 0o600)
	if out, err := exec.Command("crontab", "-n", m.path("crontab")).CombinedOutput(); err != nil {
		t.Errorf("cron rejects the table: %v\n%s", err, out)
	}
	bad := strings.Replace(table, "15 3 ", "15 33 ", 1)
	m.write("bad", bad, 0o600)
	if bad == table || exec.Command("crontab", "-n", m.path("bad")).Run() == nil {
		t.Error("this cron accepts every table")
	}

	var env []string
	for line := range strings.Lines(table) {
		fields := strings.SplitN(strings.Join(strings.Fields(line), " "), " ", 6)
		if name, _, ok := strings.Cut(fields[0], "="); ok {
			env = append(env, strings.TrimSpace(line))
			if name == "HOLDFAST_BACKEND" {
				env[len(env)-1] = name + "=" + m.url
			}
			continue
		}
		if fields[0] == "#" {
			continue
		}
		command := regexp.MustCompile(`(^|[^\\])%`).ReplaceAllString(fields[5], "${1}\n") // cron sends the text after a % to standard input
		command, _, _ = strings.Cut(command, "\n")
		cmd := m.newCommand(t.Context(), "/bin/sh", "-c", strings.ReplaceAll(command, `\%`, "%"))
		cmd.Env = env
		cmd.Env = append(cmd.Env, "HOME="+m.path("work"))
		for i, v := range cmd.Env {
			if path, ok := strings.CutPrefix(v, "PATH="); ok {
				cmd.Env[i] = "PATH=" + m.path("usr/bin") + ":" + path
			}
		}
		m.checkRan(cmd, filepath.Base(fields[5][strings.LastIndex(fields[5], "/"):]))
		if strings.Contains(command, "-n ") { // a second machine skips the run and prints nothing
			m.checkRan(copyCommand(cmd))
		}
	}
}

func copyCommand(cmd *exec.Cmd) *exec.Cmd {
	return &exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Stderr: cmd.Stderr}
}

func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, section := range []string{"systemd: a timer on several machines", "systemd: a service on one machine of several"} {
		var files []string
		for _, unit := range blocksOf(t, section, "ini") {
			path := regexp.MustCompile(`^# /etc/systemd/system/(\S+)\n`).FindStringSubmatch(unit)
			if path == nil {
				t.Fatalf("a unit has no file name:\n%s", unit)
			}
			m.write(path[1], m.moveFolders(unit), 0o644)
			files = append(files, m.path(path[1]))
		}
		out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, files...)...).CombinedOutput()
		if err != nil || strings.Contains(string(out), m.dir) {
			t.Errorf("systemd rejects %q: %v\n%s", files, err, out)
		}
		service, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(string(service))[1]
		line = strings.ReplaceAll(line, "%d", m.path("etc/holdfast"))
		cmd := m.newCommand(t.Context(), strings.Fields(line)...)
		if strings.Contains(line, " elect ") {
			m.checkLeads(cmd, "scheduler")
		} else {
			m.checkRan(cmd, "backup")
		}
	}

	m.write("bad.service", "[Service]\nType=oneshott\nExecStart=/bin/true\n", 0o644)
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", m.path("bad.service")).CombinedOutput(); err == nil && len(out) == 0 {
		t.Error("this systemd accepts every unit")
	}
}

// containerCommand returns the command of the only container of a pod.
func (m *machine) containerCommand(pod corev1.PodSpec) *exec.Cmd {
	m.t.Helper()
	if len(pod.Containers) != 1 {
		m.t.Fatalf("the pod has %d containers", len(pod.Containers))
	}
	argv := pod.Containers[0].Command
	for i := range argv {
		argv[i] = m.moveFolders(argv[i])
	}
	argv[0] = m.path("usr/bin/" + argv[0])
	return m.newCommand(m.t.Context(), argv...)
}

func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	var cron batchv1.CronJob
	manifest := blocksOf(t, "Kubernetes: a CronJob", "yaml")[0]
	if err := yaml.UnmarshalStrict([]byte(manifest), &cron); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(strings.Replace(manifest, "backoffLimit", "backofLimit", 1)), new(batchv1.CronJob)); err == nil {
		t.Error("an unknown field was accepted")
	}
	job := cron.Spec.JobTemplate.Spec
	if cron.APIVersion != "batch/v1" || cron.Kind != "CronJob" || cron.Name == "" {
		t.Errorf("got a %s of %s named %q", cron.Kind, cron.APIVersion, cron.Name)
	}
	if job.PodFailurePolicy != nil && job.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Error("the API server refuses podFailurePolicy unless restartPolicy is Never")
	}
	for _, rule := range job.PodFailurePolicy.Rules {
		if (rule.OnExitCodes == nil) == (len(rule.OnPodConditions) == 0) {
			t.Errorf("the API server wants one condition of a rule: %+v", rule)
		}
	}
	m.checkRan(m.containerCommand(job.Template.Spec), "report")

	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(blocksOf(t, "Kubernetes: one leader among replicas", "yaml")[0]), &deployment); err != nil {
		t.Fatal(err)
	}
	spec := deployment.Spec
	for key, value := range spec.Selector.MatchLabels {
		if spec.Template.Labels[key] != value {
			t.Errorf("the API server wants the label %s=%s of the selector on the pods", key, value)
		}
	}
	volumes := make(map[string]bool)
	for _, v := range spec.Template.Spec.Volumes {
		volumes[v.Name] = v.Secret != nil
	}
	for _, mount := range spec.Template.Spec.Containers[0].VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("no secret is mounted as %s", mount.Name)
		}
	}
	cmd := m.containerCommand(spec.Template.Spec)
	cmd.Env = append(cmd.Env, "HOLDFAST_BACKEND=")
	m.checkLeads(cmd, "scheduler")
}

// lockServers starts a server for each host of url, by the command of a recipe, and returns url with their
// addresses. In the command, word stands for the password.
func lockServers(t *testing.T, command []string, word, url string, hosts ...string) string {
	t.Helper()
	const password = "secret"
	args := slices.Clone(command)
	i := slices.Index(args, word)
	if args[0] != "redis-server" || i < 0 {
		t.Fatalf("no redis-server has the password %s: %q", word, args)
	}
	args[i] = password
	url = strings.Replace(url, word, password, 1)
	for _, host := range hosts {
		server := redistest.Start(t, &redisproc.Options{Password: password, Args: args[1:]})
		if !strings.Contains(url, host+":6379") {
			t.Fatalf("%s does not name %s", url, host)
		}
		url = strings.Replace(url, host+":6379", server.Addr(), 1)
	}
	return url
}

// checkLocksWork acquires a first lock on the servers of url without their quarantine, and checks that doctor finds
// no fault.
func (m *machine) checkLocksWork(url string) {
	m.t.Helper()
	m.url = url + "?quarantine=off"
	m.checkRan(m.newCommand(m.t.Context(), m.path("usr/bin/holdfast"), "run", "-q", "first", "--", "/bin/true"))
	m.url = url
	if out, err := m.newCommand(m.t.Context(), m.path("usr/bin/holdfast"), "doctor").Output(); err != nil {
		m.t.Errorf("doctor: %v\n%s", err, out)
	}
}

func TestComposeFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	type service struct {
		Image       string            `json:"image"`
		Command     []string          `json:"command"`
		Restart     string            `json:"restart"`
		Volumes     []string          `json:"volumes"`
		Environment map[string]string `json:"environment"`
	}
	var compose struct {
		Server   service             `json:"x-server"`
		Services map[string]service  `json:"services"`
		Volumes  map[string]struct{} `json:"volumes"`
	}
	if err := yaml.UnmarshalStrict([]byte(blocksOf(t, "Compose: three lock servers", "yaml")[0]), &compose); err != nil {
		t.Fatal(err)
	}
	hosts := []string{"lock-1", "lock-2", "lock-3"}
	for _, host := range hosts {
		s := compose.Services[host]
		if !slices.Equal(s.Command, compose.Server.Command) || len(s.Volumes) != 1 {
			t.Errorf("%s is not a server with a volume: %+v", host, s)
			continue
		}
		if volume, _, _ := strings.Cut(s.Volumes[0], ":"); volume != host {
			t.Errorf("%s stores its data in %s", host, volume)
		} else if _, ok := compose.Volumes[volume]; !ok {
			t.Errorf("no volume is named %s", volume)
		}
	}
	report := compose.Services["report"]
	m.checkLocksWork(lockServers(t, compose.Server.Command, "${LOCKS_PASSWORD:?}", report.Environment["HOLDFAST_BACKEND"], hosts...))
	m.checkRan(m.containerCommand(corev1.PodSpec{Containers: []corev1.Container{{Command: report.Command}}}), "report")
}

func TestKubernetesServersServeLocks(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	const section = "Kubernetes: three lock servers"
	manifests := strings.Split(blocksOf(t, section, "yaml")[0], "---\n")
	if len(manifests) != 3 {
		t.Fatalf("%d manifests, want a service, a set and a budget", len(manifests))
	}
	var (
		service corev1.Service
		set     appsv1.StatefulSet
		budget  policyv1.PodDisruptionBudget
	)
	for i, into := range []any{&service, &set, &budget} {
		if err := yaml.UnmarshalStrict([]byte(manifests[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	labels := set.Spec.Template.Labels
	for of, selector := range map[string]map[string]string{
		"the service": service.Spec.Selector, "the set": set.Spec.Selector.MatchLabels, "the budget": budget.Spec.Selector.MatchLabels,
		"the affinity": set.Spec.Template.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels,
	} {
		if !maps.Equal(selector, labels) {
			t.Errorf("%s selects %v, and the pods are %v", of, selector, labels)
		}
	}
	pod := set.Spec.Template.Spec.Containers[0]
	if set.Spec.ServiceName != service.Name || service.Spec.ClusterIP != corev1.ClusterIPNone || *set.Spec.Replicas != 3 {
		t.Errorf("want three servers with separate names: %+v", set.Spec)
	}
	if set.Spec.VolumeClaimTemplates[0].Name != pod.VolumeMounts[0].Name {
		t.Errorf("the data is not persistent: %+v", pod.VolumeMounts)
	}
	url := regexp.MustCompile("`(redlock://[^`]*)`").FindStringSubmatch(sectionText(t, section))
	if url == nil {
		t.Fatal("the section contains no URL")
	}
	backend := strings.Replace(url[1], "PASSWORD", "$(PASSWORD)", 1)
	m.checkLocksWork(lockServers(t, pod.Command, "$(PASSWORD)", backend, "locks-0.locks", "locks-1.locks", "locks-2.locks"))
}

func TestPipelineCommandsRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	workflow := blocksOf(t, "GitHub Actions", "yaml")[0]
	m.write("deploy.yml", workflow, 0o600)
	if out, err := exec.Command("go", "tool", "actionlint", m.path("deploy.yml")).CombinedOutput(); err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
	var github struct {
		Jobs map[string]struct{ Steps []struct{ Uses, Run string } }
	}
	if err := yaml.Unmarshal([]byte(workflow), &github); err != nil {
		t.Fatal(err)
	}
	steps := github.Jobs["deploy"].Steps
	m.checkRan(m.newCommand(t.Context(), "bash", "-eo", "pipefail", "-c", steps[len(steps)-1].Run), "deploy.sh")

	var gitlab map[string]struct {
		Stage     string            `json:"stage"`
		Timeout   string            `json:"timeout"`
		Variables map[string]string `json:"variables"`
		Script    []string          `json:"script"`
		Rules     []struct {
			If string `json:"if"`
		} `json:"rules"`
	}
	if err := yaml.UnmarshalStrict([]byte(blocksOf(t, "GitLab CI", "yaml")[0]), &gitlab); err != nil {
		t.Fatal(err)
	}
	m.checkRan(m.newCommand(t.Context(), "sh", "-ec", strings.Join(gitlab["deploy"].Script, "\n")), "deploy.sh")
}

func TestScriptsOfPageRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	script := m.moveFolders(blocksOf(t, "A script that cannot be wrapped", "sh")[0])
	m.checkRan(m.newCommand(t.Context(), "sh", "-c", script), "step-one", "step-two")
	if out, err := m.newCommand(t.Context(), m.path("usr/bin/holdfast"), "show", "-e", "deploy").Output(); err == nil {
		t.Errorf("the lock was not released:\n%s", out)
	}
}

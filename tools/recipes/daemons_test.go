package recipes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runContained starts a shell script as root, in separate namespaces. Its mounts, its processes and, if it has
// a cgroup, the processes of that cgroup are visible only there, and end with the test. wait returns the
// output of the script. If the machine does not allow namespaces, the test is skipped, unless
// HOLDFAST_SERVERS_REQUIRED is set.
func runContained(t *testing.T, script string) (wait func() string) {
	t.Helper()
	if out, err := exec.Command("unshare", "--mount", "--pid", "--cgroup", "--fork", "true").CombinedOutput(); err != nil {
		because := fmt.Sprintf("this user cannot make namespaces, which the daemon is kept in: %v: %s", err, out)
		if os.Getenv("HOLDFAST_SERVERS_REQUIRED") != "" {
			t.Fatal(because)
		}
		t.Skip(because)
	}
	group := newGroup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = patience
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return func() string {
		err := <-ended
		ended <- err
		if err != nil {
			t.Errorf("the script: %v", err)
		}
		return out.String()
	}
}

// newGroup creates a cgroup and removes it at the end of the test.
func newGroup(t *testing.T) *os.File {
	t.Helper()
	mounts, err1 := os.ReadFile("/proc/self/mounts")
	own, err2 := os.ReadFile("/proc/self/cgroup")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	mount := regexp.MustCompile(`(?m)^\S+ (\S+) cgroup2 `).FindSubmatch(mounts)
	path := regexp.MustCompile(`(?m)^0::(.*)$`).FindSubmatch(own)
	if mount == nil || path == nil {
		t.Fatalf("there is no cgroup2 in\n%s\nor in\n%s", mounts, own)
	}
	dir, err := os.MkdirTemp(filepath.Join(string(mount[1]), string(path[1])), "holdfast-")
	if err != nil {
		t.Fatal(err)
	}
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		group.Close()
		for end := time.Now().Add(patience); removeGroup(dir) != nil; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("processes are still in %s", dir)
				return
			}
		}
	})
	return group
}

// removeGroup removes a cgroup and the cgroups in it. It fails while one of them has a process.
func removeGroup(dir string) error {
	inner, err := os.ReadDir(dir)
	for _, e := range inner {
		if e.IsDir() {
			err = errors.Join(err, removeGroup(filepath.Join(dir, e.Name())))
		}
	}
	if err = errors.Join(err, syscall.Rmdir(dir)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// TestCronRunsLines makes the cron daemon run the lines of the recipe, at the next minute.
func TestCronRunsLines(t *testing.T) {
	if testing.Short() {
		t.Skip("-short waits for no minute")
	}
	t.Parallel()
	m := newMachine(t)
	table := m.moveFolders(blocksOf(t, "cron, on several machines", "cron")[0])
	table = regexp.MustCompile(`(?m)^[0-9*]+ [0-9*]+ \* \* \* `).ReplaceAllString(table, "* * * * * ")
	table = regexp.MustCompile(`(?m)^(HOLDFAST_BACKEND)=.*$`).ReplaceAllString(table, "$1="+m.url)
	table = strings.Replace(table, "PATH=", "PATH="+m.path("usr/bin")+":", 1)
	if n := strings.Count(table, "\n* * * * * "); n != 2 {
		t.Fatalf("%d of two lines run each minute:\n%s", n, table)
	}
	m.write("crontab", table, 0o600)
	runContained(t, `
mount -t tmpfs none /run
mount -t tmpfs none /etc/cron.d
mount --bind /dev/null /etc/crontab
mount -t tmpfs none /var/spool/cron
mkdir -m 1730 /var/spool/cron/crontabs
crontab '`+m.path("crontab")+`'
exec cron -f
`)
	for end := time.Now().Add(time.Minute + patience); ; time.Sleep(50 * time.Millisecond) {
		text, _ := os.ReadFile(m.path("ran")) // none yet
		report, rotate := strings.Count(string(text), "report.sh"), strings.Count(string(text), "rotate.sh")
		if report == 1 && rotate == 1 {
			return
		}
		if report > 1 || rotate > 1 || time.Now().After(end) {
			t.Fatalf("in a minute cron ran report.sh %d times and rotate.sh %d times", report, rotate)
		}
	}
}

// startManager makes a systemd for users (--user) start with units, and then runs a script. A system manager
// must be the first process of a machine. Both kinds have the same code for services and timers.
func (m *machine) startManager(units map[string]string, script string) (wait func() string) {
	m.t.Helper()
	folder := "home/.config/systemd/user"
	if err := os.MkdirAll(m.path(folder), 0o755); err != nil {
		m.t.Fatal(err)
	}
	for name, text := range units {
		m.write(filepath.Join(folder, name), text, 0o644)
	}
	return runContained(m.t, `
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/user/0/systemd
export HOME='`+m.path("home")+`' XDG_RUNTIME_DIR=/run/user/0 SYSTEMD_LOG_TARGET=console
systemctl() { command systemctl --user --no-pager "$@"; }
state() { systemctl show -p ActiveState,SubState,Result,StatusText,NRestarts "$1" | sort | tr '\n' ' '; echo; }
ended() { until systemctl show -p ActiveState "$1" | grep -qE '=(inactive|failed)'; do sleep 0.05; done; state "$1"; }
/lib/systemd/systemd --user --unit=basic.target &
until systemctl is-system-running >/dev/null 2>&1; do sleep 0.1; done
`+script)
}

// serviceUnit returns a unit that runs holdfast with the URL of the machine's server.
func (m *machine) serviceUnit(kind, lines, arguments string) string {
	return "[Service]\nType=" + kind + "\nEnvironment=HOLDFAST_BACKEND=" + m.url + "\nKillMode=mixed\n" + lines +
		"\nExecStart=" + m.path("usr/bin/holdfast") + " " + arguments + "\n"
}

// holdLock acquires a lock, which expires after d.
func (m *machine) holdLock(name string, d time.Duration) {
	m.t.Helper()
	lease := m.path("lease-" + name)
	if out, err := m.newCommand(m.t.Context(), m.path("usr/bin/holdfast"), "acquire", "--ttl", fmt.Sprint(d), "--file", lease, name).Output(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
}

// checkLines checks that text has each of the lines.
func (m *machine) checkLines(text string, lines ...string) {
	m.t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line) {
			m.t.Errorf("the output lacks %q:\n%s", line, text)
		}
	}
}

// TestSystemdWaitsForServiceThatWaits holds a lock for far longer than TimeoutStartSec, and for longer than
// one request for more time is valid.
func TestSystemdWaitsForServiceThatWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("-short waits for no lock")
	}
	t.Parallel()
	m := newMachine(t)
	const held = 40 * time.Second
	m.holdLock("job", held)
	began := time.Now()
	out := m.startManager(map[string]string{
		"job.service": m.serviceUnit("notify", "TimeoutStartSec=2\nRuntimeMaxSec=3", "run job -- sleep 1000"),
	}, `
systemctl start job.service
state job.service
ended job.service
`)()
	if waited := time.Since(began); waited < held {
		t.Errorf("the lock was held for %v, and the service started after %v", held, waited)
	}
	m.checkLines(out, "ActiveState=active NRestarts=0 Result=success StatusText=running the command under the lock job SubState=running",
		"ActiveState=failed NRestarts=0 Result=timeout") // the manager does not extend the start of a stuck service
}

// TestRunReportsToSystemd checks the messages of run with a real manager.
func TestRunReportsToSystemd(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.holdLock("busy", time.Hour)
	m.write("work/trap.sh", "trap 'echo >"+m.path("hup")+"' HUP\nwhile :; do sleep 0.05; done\n", 0o644)
	out := m.startManager(map[string]string{
		"run.service": m.serviceUnit("notify", "WatchdogSec=1\nSuccessExitStatus=143\nExecReload=/bin/kill -HUP $MAINPID",
			"run run -- sh "+m.path("work/trap.sh")),
		"frozen.service":  m.serviceUnit("notify", "WatchdogSec=1", "run frozen -- sleep 1000"),
		"skipped.service": m.serviceUnit("notify", "", "run -n -x busy -- true"),
		"refused.service": m.serviceUnit("notify", "", "run -n busy -- true"),
	}, `
systemctl start run.service
sleep 3
echo past its watchdog: $(state run.service)
systemctl reload run.service
until [ -e `+m.path("hup")+` ]; do sleep 0.05; done
echo reloaded: $(state run.service)
systemctl stop run.service
echo stopped: $(state run.service)
systemctl start frozen.service
kill -STOP "$(systemctl show -p MainPID --value frozen.service)"
echo frozen: $(ended frozen.service)
systemctl start skipped.service
echo skipped: $(ended skipped.service)
systemctl start refused.service || echo refused: $(ended refused.service)
`)()
	m.checkLines(out,
		"past its watchdog: ActiveState=active NRestarts=0 Result=success StatusText=running the command under the lock run SubState=running",
		"reloaded: ActiveState=active NRestarts=0 Result=success StatusText=running the command under the lock run SubState=running",
		"stopped: ActiveState=inactive NRestarts=0 Result=success",
		"frozen: ActiveState=failed NRestarts=0 Result=watchdog",
		"skipped: ActiveState=inactive NRestarts=0 Result=success",
		"refused: ActiveState=failed")
}

// TestSystemdRunsUnits makes a manager start the units of the recipes. The timer fires each second instead,
// and a manager for users loads no credentials.
func TestSystemdRunsUnits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	units := make(map[string]string)
	for _, section := range []string{"systemd: a timer on several machines", "systemd: a service on one machine of several"} {
		for _, unit := range blocksOf(t, section, "ini") {
			path := regexp.MustCompile(`^# /etc/systemd/system/(\S+)\n`).FindStringSubmatch(unit)
			units[path[1]] = strings.ReplaceAll(m.moveFolders(unit), "%d", m.path("etc/holdfast"))
		}
	}
	each := strings.Replace(units["backup.timer"], "02:30:00", "*:*:*\nAccuracySec=1us", 1)
	if each == units["backup.timer"] {
		t.Fatal("the timer is not set to half past two")
	}
	units["backup.timer"] = each
	ran := m.path("ran")
	out := m.startManager(units, `
systemctl start backup.timer
until grep -qs backup `+ran+`; do sleep 0.05; done
systemctl stop backup.timer
echo backup: $(ended backup.service)
printf '#!/bin/sh\nbasename $0 >>`+ran+`\nexec sleep 1000\n' | tee `+m.path("usr/local/bin/backup")+` >`+m.path("usr/local/bin/scheduler")+`
rm `+ran+`
systemctl start --no-block backup.service
until grep -qs backup `+ran+`; do sleep 0.05; done
systemctl stop backup.service
echo stopped backup: $(state backup.service)
systemctl start scheduler.service
until grep -qs scheduler `+ran+`; do sleep 0.05; done
echo scheduler: $(state scheduler.service)
systemctl stop scheduler.service
echo stopped scheduler: $(state scheduler.service)
`)()
	m.checkLines(out,
		"backup: ActiveState=inactive NRestarts=0 Result=success",
		"stopped backup: ActiveState=inactive NRestarts=0 Result=success",
		"scheduler: ActiveState=active NRestarts=0 Result=success StatusText=running the command under the lock scheduler SubState=running",
		"stopped scheduler: ActiveState=inactive NRestarts=0 Result=success")
}

package sqllock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// The test program runs itself as another process, in the role that a variable names.
const (
	roleVariable  = "SQLLOCK_TEST_ROLE"
	fileVariable  = "SQLLOCK_TEST_FILE"
	indexVariable = "SQLLOCK_TEST_INDEX"

	shortTTL = 5 * time.Second
	rounds   = 4
)

var roles = map[string]func() int{
	"hold": holdLock, "count": countInTurn, "churn": churnLocks, "try": tryLock,
	"flock": countByFlock, "guard": guardLock, "read": readOnce, "reopen": guardReopened,
}

// inRole calls do with a client of the file and returns the exit code of the process.
func inRole(do func(ctx context.Context, c *holdfast.Client) error) int {
	return exitCode(withClient(do))
}

// withClient calls do with a client of the file.
func withClient(do func(ctx context.Context, c *holdfast.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	d, err := sqlite.Open(ctx, "sqlite://"+os.Getenv(fileVariable), nil)
	if err != nil {
		return err
	}
	c, err := holdfast.New(d, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}

func exitCode(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// holdLock holds the lock until the process is killed.
func holdLock() int {
	return inRole(func(ctx context.Context, c *holdfast.Client) error {
		l, err := c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: shortTTL})
		if err != nil {
			return err
		}
		fmt.Println("held")
		<-l.Context().Done()
		return context.Cause(l.Context())
	})
}

// tryLock finds out whether another process has the lock, and closes the file.
func tryLock() int {
	return inRole(func(ctx context.Context, c *holdfast.Client) error {
		_, err := c.TryAcquire(ctx, "k", &holdfast.AcquireOptions{TTL: shortTTL})
		if !errors.Is(err, holdfast.ErrHeld) {
			return fmt.Errorf("Acquire() = %w, want ErrHeld", err)
		}
		return nil
	})
}

// churnLocks takes and releases locks until the process is killed.
func churnLocks() int {
	return inRole(func(ctx context.Context, c *holdfast.Client) error {
		fmt.Println("held")
		errs := make(chan error)
		for i := range 3 {
			go func() {
				for n := 0; ; n++ {
					for _, name := range []string{"k", fmt.Sprint("new-", os.Getpid(), "-", i, "-", n)} {
						if err := c.Do(ctx, name, nil, func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
							errs <- err
						}
					}
				}
			}()
		}
		return <-errs
	})
}

// countInTurn records the process's number and the time, in its turn. Then it increments a counter several
// times and records each wait. Only the lock orders these writes.
func countInTurn() int {
	return inRole(func(ctx context.Context, c *holdfast.Client) error {
		for i := range 1 + rounds {
			begin := time.Now()
			err := c.Do(ctx, "k", &holdfast.AcquireOptions{TTL: 30 * time.Second}, func(_ context.Context, l *holdfast.Lease) error {
				if i == 0 {
					return noteWord("order", fmt.Sprintf("%s@%d@%s ", os.Getenv(indexVariable), time.Now().UnixMilli(), l.Owner()))
				}
				return errors.Join(noteWord("waits", fmt.Sprintf("%d ", time.Since(begin).Milliseconds())), noteWord("count", ""))
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// guardLock takes the lock repeatedly, and records each grant and each other process that holds the lock at the
// same time, until a file is removed. It succeeds only by an error that names the file.
func guardLock() int {
	return exitCode(noteNamed(withClient(func(ctx context.Context, c *holdfast.Client) error { return takeGuarded(ctx, c, 1<<30) })))
}

// readOnce is guardLock in a process that has first read the files directly, as a backup does.
func readOnce() int {
	return exitCode(noteNamed(withClient(func(ctx context.Context, c *holdfast.Client) error {
		err := takeGuarded(ctx, c, 20)
		for _, end := range []string{"", "-wal", "-shm"} {
			if _, readErr := os.ReadFile(os.Getenv(fileVariable) + end); readErr != nil && !os.IsNotExist(readErr) {
				err = errors.Join(err, readErr)
			}
		}
		if err != nil {
			return err
		}
		return takeGuarded(ctx, c, 1<<30)
	})))
}

// guardReopened is guardLock with a new client for every few locks, which opens and closes the files, until a
// file named stop exists.
func guardReopened() int {
	for {
		if _, err := os.Stat(pathBeside("stop")); err == nil {
			return 0
		}
		if err := withClient(func(ctx context.Context, c *holdfast.Client) error { return takeGuarded(ctx, c, 5) }); err != nil {
			return exitCode(noteNamed(err))
		}
	}
}

// pathBeside returns the path of a file in the folder of the locks.
func pathBeside(name string) string {
	return filepath.Join(filepath.Dir(os.Getenv(fileVariable)), name)
}

// noteNamed records that this process got an error that names a removed or damaged file. It returns all other
// errors.
func noteNamed(err error) error {
	if err != nil && (strings.Contains(err.Error(), "removed or replaced") || strings.Contains(err.Error(), "malformed")) {
		return addWord("named", strconv.Itoa(os.Getpid()))
	}
	return err
}

// takeGuarded takes the lock n times. While it holds the lock it takes a flock, which fails if another process
// is inside.
func takeGuarded(ctx context.Context, c *holdfast.Client, n int) error {
	door, err := os.OpenFile(pathBeside("door"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer door.Close()
	slog.SetLogLoggerLevel(slog.LevelError) // the end of each of these processes logs a warning
	for range n {
		err := c.Do(ctx, "k", &holdfast.AcquireOptions{TTL: shortTTL}, func(context.Context, *holdfast.Lease) error {
			if flock(door, flockTry) != nil {
				other, err := os.ReadFile(door.Name())
				return errors.Join(err, addWord("overlaps", fmt.Sprintf("%s-%d", other, os.Getpid())))
			}
			defer flock(door, flockEnd)
			_, err := door.WriteAt(fmt.Appendf(nil, "%7d", os.Getpid()), 0)
			time.Sleep(rand.N(2 * time.Millisecond))
			return errors.Join(err, addWord("inside", strconv.Itoa(os.Getpid())))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addWord appends a word to a file in the folder of the locks. Other processes may append at the same time.
func addWord(name, word string) error {
	f, err := os.OpenFile(pathBeside(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(word + " ")
	return errors.Join(err, f.Close())
}

// countByFlock does what countInTurn does, with a flock of the file "door" as the lock.
func countByFlock() int {
	err := addWord("ready", strconv.Itoa(os.Getpid()))
	for i := 0; err == nil && i < 1+rounds; i++ {
		begin := time.Now()
		var door *os.File
		if door, err = os.OpenFile(pathBeside("door"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			break
		}
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			err = flock(door, flockWait)
		}
		if err == nil && i > 0 {
			err = errors.Join(noteWord("flock-waits", fmt.Sprintf("%d ", time.Since(begin).Milliseconds())), noteWord("flock-count", ""))
		}
		err = errors.Join(err, door.Close())
	}
	return exitCode(err)
}

// noteWord reads a file in the folder of the locks and rewrites it, with one more word or with the next
// number.
func noteWord(name, word string) error {
	name = pathBeside(name)
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if word == "" {
		n, _ := strconv.Atoi(string(text))
		return os.WriteFile(name, []byte(strconv.Itoa(n+1)), 0o600)
	}
	return os.WriteFile(name, append(text, word...), 0o600)
}

// startProcess starts another process in a role, on the file of r.
func (r *rig) startProcess(role string, index int) (cmd *exec.Cmd, exited <-chan struct{}) {
	r.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, fileVariable+"="+r.file, indexVariable+"="+strconv.Itoa(index))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	r.NoError(err)
	exited, err = child.Start(cmd, syscall.SIGKILL)
	r.NoError(err)
	r.Cleanup(func() { cmd.Process.Kill() })
	if role == "hold" || role == "churn" {
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || line != "held\n" {
			r.Fatalf("the holder printed %q, %v", line, err)
		}
	}
	return cmd, exited
}

// The lock passes on to another process that waits.
func TestLockOfKilledProcessPassesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, onSQLite)
	cmd, exited := r.startProcess("hold", 0)
	waiter := r.newClient()
	got := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", long) })
	r.Eventually("it waits", func() bool { return r.waiterCount() == 1 })
	r.NoError(cmd.Process.Kill())
	<-exited
	killed, owner, expires := time.Now(), "", 0
	r.NoError(r.db.QueryRowContext(r.WaitContext(), "SELECT owner, expires FROM holdfast_lock WHERE name = 'k'").Scan(&owner, &expires))
	l := <-got
	if since := r.countRows("SELECT since FROM holdfast_lock WHERE name = 'k'"); owner != l.Owner() && since < expires {
		t.Errorf("the lock passed on %d µs before it expired", expires-since)
	}
	t.Logf("passed on after %v", time.Since(killed).Round(time.Millisecond))
	r.Release(l)
	r.checkCleared()
}

// The process that has the files open also reads them directly, as a backup does. That drops its SQLite locks,
// so another process believes that it is the last when it closes the file.
func TestDirectReadKeepsLockFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, onSQLite)
	r.db.Close() // the driver must be this process's only user of the file
	d, err := r.openLinked()
	fixture.CloseAtEnd(r.Rig, d, err)
	for range 3 { // each process might leave writes in a file that the next one does not see
		g := r.AcquireGrant(d, "k", long)
		for _, end := range []string{"", "-wal", "-shm"} {
			_, err := os.ReadFile(r.file + end)
			r.NoError(err)
		}
		for range 2 {
			cmd, exited := r.startProcess("try", 0)
			<-exited
			if !cmd.ProcessState.Success() {
				t.Error("another process acquired a held lock")
			}
			r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
	}
}

// The commits from before the kill survive, so tokens rise.
func TestFileSurvivesKilledWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t, onSQLite)
	r.makeRow()
	kills := 20
	if testing.Short() {
		kills = 3
	}
	before := r.countRows("SELECT token FROM holdfast_lock WHERE name = 'k'")
	for range kills {
		r.execSQL("UPDATE holdfast_lock SET owner = '', expires = 1 WHERE name = 'k'") // as if the lease of the killed process had expired
		r.execSQL("DELETE FROM holdfast_ticket")
		cmd, exited := r.startProcess("churn", 0)
		r.Eventually("it writes", func() bool { return r.countRows("SELECT token FROM holdfast_lock WHERE name = 'k'") > before })
		time.Sleep(rand.N(10 * time.Millisecond)) // kill at a random moment
		before = r.countRows("SELECT token FROM holdfast_lock WHERE name = 'k'")
		r.NoError(cmd.Process.Kill())
		<-exited
		var verdict string
		r.NoError(r.db.QueryRowContext(r.WaitContext(), "PRAGMA integrity_check").Scan(&verdict))
		if after := r.countRows("SELECT token FROM holdfast_lock WHERE name = 'k'"); verdict != "ok" || after < before {
			t.Fatalf("the file is %s, and token %d came after %d", verdict, after, before)
		}
	}
	r.execSQL("UPDATE holdfast_lock SET owner = '', expires = 1")
	r.execSQL("DELETE FROM holdfast_ticket")
	l := r.Acquire(r.newClient(), "k", long)
	if int(l.Token()) <= before {
		t.Errorf("token %d after %d", l.Token(), before)
	}
	r.Release(l)
}

// The first waiter gets the lock when the lease of a killed holder expires, the others in order of arrival. A
// counter that only the lock guards is exact at the end.
func TestManyProcessesOverOneFile(t *testing.T) {
	t.Parallel()
	processes := 50
	switch {
	case os.Getenv("HOLDFAST_LONG") != "" && !raceDetectorOn:
		processes = 200
	case testing.Short():
		processes = 8
	}
	r := newRig(t, onSQLite)
	r.execSQL("CREATE TABLE joined (owner text, place bigint)") // a process that was suspended for long loses its ticket and takes another
	r.execSQL("CREATE TRIGGER join_noted AFTER INSERT ON holdfast_ticket BEGIN INSERT INTO joined VALUES (NEW.owner, NEW.place); END")
	holder, over := r.startProcess("hold", 0)
	var all sync.WaitGroup
	for i := range processes {
		cmd, exited := r.startProcess("count", i)
		all.Go(func() {
			<-exited
			if !cmd.ProcessState.Success() {
				t.Errorf("process %d: %v", i, cmd.ProcessState)
			}
		})
		r.Eventually("it waits", func() bool { return r.countRows("SELECT COUNT(DISTINCT owner) FROM joined") == i+1 })
	}
	r.NoError(holder.Process.Kill())
	<-over
	killed := time.Now()
	all.Wait()
	var order, places []int
	passed := time.Duration(0) // time until the first waiter has the lock
	for _, word := range r.notedWords("order") {
		parts := strings.SplitN(word, "@", 3)
		if ms, _ := strconv.ParseInt(parts[1], 10, 64); order == nil {
			passed = time.UnixMilli(ms).Sub(killed)
		}
		index, _ := strconv.Atoi(parts[0])
		order, places = append(order, index), append(places, r.countRows("SELECT MAX(place) FROM joined WHERE owner = '"+parts[2]+"'"))
	}
	t.Logf("%d grants to %d processes in %v, the first %v after the holder was killed; the longest wait took %v", processes*(1+rounds), processes,
		time.Since(killed).Round(time.Millisecond), passed.Round(time.Millisecond), r.longestWait("waits"))
	if !slices.IsSorted(places) {
		t.Errorf("served in the order %v, of the places %v", order, places)
	}
	if slices.Sort(order); len(slices.Compact(order)) != processes {
		t.Errorf("served processes %v, want each of %d once", order, processes)
	}
	if n := r.notedWords("count"); len(n) != 1 || n[0] != strconv.Itoa(processes*rounds) {
		t.Errorf("counter = %v, want %d", n, processes*rounds)
	}
	r.checkCleared()
	if os.Getenv("HOLDFAST_LONG") != "" {
		t.Logf("by flock the longest wait took %v", r.flockWait(processes))
	}
}

// flockWait returns the longest wait of the same number of processes that count by flock.
func (r *rig) flockWait(processes int) time.Duration {
	r.Helper()
	door, err := os.OpenFile(filepath.Join(filepath.Dir(r.file), "door"), os.O_CREATE|os.O_RDWR, 0o600)
	r.NoError(err)
	r.NoError(flock(door, flockWait))
	var all sync.WaitGroup
	for i := range processes {
		_, exited := r.startProcess("flock", i)
		all.Go(func() { <-exited })
	}
	r.Eventually("all have begun", func() bool { return len(r.notedWords("ready")) == processes })
	r.NoError(door.Close())
	all.Wait()
	if n := r.notedWords("flock-count"); len(n) != 1 || n[0] != strconv.Itoa(processes*rounds) {
		r.Errorf("counter under flock = %v, want %d", n, processes*rounds)
	}
	return r.longestWait("flock-waits")
}

// longestWait returns the longest of the waits in a file, which are in ms.
func (r *rig) longestWait(name string) (wait time.Duration) {
	r.Helper()
	for _, word := range r.notedWords(name) {
		ms, err := strconv.Atoi(word)
		r.NoError(err)
		wait = max(wait, time.Duration(ms)*time.Millisecond)
	}
	return wait
}

// Eight processes take a lock all the time. One of them has read the files directly, and one opens and closes
// them. Then -wal and -shm are removed and eight new processes start. Two processes may be inside at once only
// if one of them got an error that names the file. With HOLDFAST_LONG this continues for five minutes.
func TestRemovedFilesKeepOneHolder(t *testing.T) {
	t.Parallel()
	const grants = 200 // grants per round
	begun, long := time.Now(), os.Getenv("HOLDFAST_LONG") != ""
	r := newRig(t, onSQLite)
	r.db.Close() // an open handle would keep a removed file
	rounds, damaged := 0, 0
	stop := filepath.Join(filepath.Dir(r.file), "stop")
	for ; rounds < 2 || long && time.Since(begun) < 5*time.Minute; rounds++ {
		before := len(r.notedWords("inside"))
		var guards, reopens sync.WaitGroup
		for i := range 8 {
			role, group := "guard", &guards
			switch i {
			case 0:
				role = "read"
			case 1:
				role, group = "reopen", &reopens
			}
			cmd, exited := r.startProcess(role, i)
			group.Go(func() {
				<-exited
				if !cmd.ProcessState.Success() {
					t.Errorf("round %d: process %d (%s) ended without an error that names the file", rounds, cmd.Process.Pid, role)
				}
			})
		}
		r.Eventually("they take the lock", func() bool { return len(r.notedWords("inside")) >= before+grants })
		r.NoError(errors.Join(os.Remove(r.file+"-wal"), os.Remove(r.file+"-shm")))
		guards.Wait()
		r.NoError(os.WriteFile(stop, nil, 0o600))
		reopens.Wait()
		r.NoError(os.Remove(stop))
		if t.Failed() {
			break
		}
		if !r.isReadable() { // without its -wal the file may be unusable
			damaged++
			r.NoError(errors.Join(os.Remove(r.file), os.RemoveAll(r.file+"-wal"), os.RemoveAll(r.file+"-shm")))
		}
	}
	named := r.notedWords("named")
	overlaps := r.notedWords("overlaps")
	for _, pair := range overlaps {
		a, b, _ := strings.Cut(strings.TrimSpace(pair), "-")
		if !slices.Contains(named, a) && !slices.Contains(named, b) {
			t.Errorf("%s were holders at once, and neither had an error", pair)
		}
	}
	t.Logf("%d grants in %d rounds, %v: %d processes had an error that names a file, %d overlaps, the file was damaged %d times",
		len(r.notedWords("inside")), rounds, time.Since(begun).Round(time.Second), len(named), len(overlaps), damaged)
}

// isReadable reports whether SQLite can read the file.
func (r *rig) isReadable() bool {
	r.Helper()
	db := r.openPool("")
	defer db.Close()
	var verdict string
	err := db.QueryRowContext(r.WaitContext(), "PRAGMA integrity_check").Scan(&verdict)
	return err == nil && verdict == "ok"
}

// notedWords returns the words in a file in the folder of the locks.
func (r *rig) notedWords(name string) []string {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(r.file), name))
	if !os.IsNotExist(err) {
		r.NoError(err)
	}
	return strings.Fields(string(text))
}

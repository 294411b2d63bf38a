package files_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

const childEnv = "KV3FS_TEST_SAVES_TO"

// deletes is the variant of a child that deletes groups in place of saving them.
const deletes = 1 << 40

// TestMain turns the test program, if an environment variable says so, into a process
// that saves or deletes blocks in groups of four and prints the number of each group
// that was flushed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(leaktest.Main(m))
}

func child(dir string) error {
	variant, err := strconv.ParseUint(os.Getenv("KV3FS_TEST_VARIANT"), 10, 64)
	if err != nil {
		return err
	}
	groups, err := strconv.Atoi(os.Getenv("KV3FS_TEST_GROUPS"))
	if err != nil {
		return err
	}
	s, err := files.Open(files.Options{Dirs: []string{dir}, Layout: layout, Streams: 4})
	if err != nil {
		return err
	}
	for g := range groups {
		if variant == deletes {
			err = s.Delete(context.Background(), group(g))
		} else {
			err = saveGroup(s, g, variant)
		}
		if err != nil {
			return err
		}
		fmt.Println(g)
	}
	return s.Close()
}

func saveGroup(s *files.Store, g int, variant uint64) error {
	var bufs [][]byte
	for _, k := range group(g) {
		bufs = append(bufs, content(k, variant))
	}
	ctx := context.Background()
	task, err := s.Save(ctx, layout.ByBlock(group(g), bufs))
	if err == nil {
		err = task.Wait(ctx)
	}
	if err == nil {
		err = s.Flush(ctx)
	}
	return err
}

func group(g int) []kv.Key { return []kv.Key{key(4 * g), key(4*g + 1), key(4*g + 2), key(4*g + 3)} }

// start starts a child process.
func start(t *testing.T, dir string, variant uint64, groups int) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprint("KV3FS_TEST_VARIANT=", variant), fmt.Sprint("KV3FS_TEST_GROUPS=", groups))
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

// A process is killed at any moment. What was flushed is there, verified, and nothing
// else is wrong.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	for round := range 6 {
		cmd, lines := start(t, dir, 0, 1<<20)
		flushed := -1
		for lines.Scan() {
			g, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatal(lines.Text())
			}
			flushed = g
			if g == 5+40*round {
				must(t, cmd.Process.Signal(syscall.SIGKILL))
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("it was not killed")
		}
		s := open(t, in(dir))
		for g := range flushed + 1 {
			for _, k := range group(g) {
				if !has(t, s, k) {
					t.Fatalf("round %d: a block of group %d of %d is not there", round, g, flushed)
				}
				loads(t, s, k, 0)
			}
		}
		for g := flushed + 1; g < flushed+3; g++ {
			for _, k := range group(g) {
				if _, err := load(t, s, k); err == nil {
					loads(t, s, k, 0)
				} else if err != kv.ErrMiss {
					t.Errorf("half-written: %v", err)
				}
			}
		}
		if st := s.Stats(); st.CorruptBlocks != 0 || st.UnverifiedShards != 0 {
			t.Errorf("%+v", st)
		}
		must(t, s.Close())
	}
}

// Two processes write the same blocks at once, each as it has computed them: both variants
// are right, and no block is taken for damaged.
func TestTwoProcesses(t *testing.T) {
	const groups = 60
	dir := t.TempDir()
	a, fromA := start(t, dir, 1, groups)
	b, fromB := start(t, dir, 2, groups)
	s := open(t, in(dir))
	for g := range groups {
		for !fromA.Scan() {
			t.Fatal("A ended early")
		}
		for _, k := range group(g) {
			loads(t, s, k, 1, 2)
		}
	}
	for fromB.Scan() {
		if _, err := strconv.Atoi(fromB.Text()); err != nil {
			t.Error(fromB.Text())
		}
	}
	if fromA.Scan() {
		t.Error(fromA.Text())
	}
	must(t, a.Wait())
	must(t, b.Wait())
	fresh := open(t, in(dir))
	for g := range groups {
		for _, k := range group(g) {
			loads(t, fresh, k, 1, 2)
		}
	}
	for _, s := range []*files.Store{s, fresh} {
		if st := s.Stats(); st.CorruptBlocks != 0 || st.UnverifiedShards != 0 {
			t.Errorf("%+v", st)
		}
	}
	if n := len(ucmtest.Blocks(t, dir)); n != 4*groups {
		t.Errorf("%d blocks", n)
	}
}

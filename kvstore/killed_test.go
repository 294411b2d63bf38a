package kvstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

const (
	childOf  = "KV3FS_TEST_CHAIN" // the chain that a child opens
	childDir = "KV3FS_TEST_DIR"   // where
)

func childConfig(chain, dir string) Config {
	c := Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16}, Layout: testLayout,
		Cache: &CacheOptions{CapacityBytes: 64 * testLayout.BlockBytes},
	}
	if strings.HasSuffix(chain, "Ds3fs") {
		c.Ds3fs = &Ds3fsOptions{Mount: dir, Rings: 1}
	} else {
		c.Posix = &PosixOptions{Dirs: []string{dir}}
	}
	return c
}

// child opens a chain, saves a block and leaves the chain open.
func child(chain, dir string) error {
	s, err := Open(chain, childConfig(chain, dir))
	if err != nil {
		return err
	}
	task, err := s.Save(context.Background(), testLayout.ByBlock(testKeys(1), buffers(testKeys(1))))
	if err == nil {
		err = errors.Join(task.Wait(context.Background()), s.Flush(context.Background()))
	}
	fmt.Println("saved")
	return err
}

// startChild starts a child and returns it, once it has saved, with the objects in /dev/shm that
// it has mapped.
func startChild(t *testing.T, chain, dir string) (cmd *exec.Cmd, objects []string) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childOf+"="+chain, childDir+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "saved" {
		t.Log(lines.Text()) // the log of the store
	}
	return cmd, mapped(t, cmd.Process.Pid)
}

// mapped returns the objects in /dev/shm that a process has mapped.
func mapped(t *testing.T, pid int) []string {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	objects := regexp.MustCompile(`/dev/shm/(hf3fs-iov|kv3fs-mem)-\S+`).FindAllString(string(maps), -1)
	slices.Sort(objects)
	return slices.DeleteFunc(slices.Compact(objects), func(o string) bool { return !exists(o) }) // some have lost their names
}

// cacheOf returns the one of these objects that has a cache's memory.
func cacheOf(objects []string) string {
	i := slices.IndexFunc(objects, func(o string) bool { return strings.Contains(o, "kv3fs-mem-own-") })
	if i < 0 {
		return ""
	}
	return objects[i]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// The memory of a Cache before rings is in /dev/shm. That of a process that was killed is
// removed by the next one that opens such a chain; what the rings had, by the daemon.
func TestKilledCacheLeavesNothing(t *testing.T) {
	d := daemontest.Serve(t)
	const chain = "Cache|Ds3fs"
	killed, objects := startChild(t, chain, d.Mount)
	_, others := startChild(t, chain, d.Mount)
	dead, living := cacheOf(objects), cacheOf(others)
	if dead == "" || living == "" {
		t.Fatalf("the children have %v and %v", objects, others)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // its status is that it was killed

	s, err := Open(chain, childConfig(chain, d.Mount))
	if err != nil {
		t.Fatal(err)
	}
	if exists(dead) {
		t.Errorf("%s is there after another Open", dead)
	}
	if n, err := s.LookupPrefix(t.Context(), testKeys(1)); n != 1 || err != nil {
		t.Errorf("what was flushed: %d blocks, %v", n, err)
	}
	for _, o := range objects {
		for end := time.Now().Add(30 * time.Second); exists(o); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is still there", o)
			}
		}
	}
	if !exists(living) { // rings remove the names of theirs themselves
		t.Errorf("%s of a living process was removed", living)
	}
	own := mapped(t, os.Getpid())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, o := range own {
		if exists(o) {
			t.Errorf("%s is there after Close", o)
		}
	}
}

// Where neither rings nor other processes use a Cache's memory, it has no name.
func TestPrivateCacheIsNotInDevShm(t *testing.T) {
	if _, objects := startChild(t, "Cache|Posix", t.TempDir()); len(objects) > 0 {
		t.Errorf("the child has %v", objects)
	}
}

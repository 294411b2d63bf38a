package cred

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// given is a capability that every root has, unlike that of ObeyQuotas. Like that, it is
// none of those that follow the file-system uid.
const given = unix.CAP_KILL

// A capability that was given up is gone in all threads, and acting for callers brings it
// back in none.
func TestGivenUpInAllThreads(t *testing.T) {
	needRoot(t)
	if effective(t)&(1<<given) == 0 {
		t.Skip("there is nothing to give up")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=give up")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "cgo") {
		t.Skip("a test binary with cgo")
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func childGivesUp() int {
	switch err := giveUp(given); {
	case errors.Is(err, unix.ENOTSUP):
		fmt.Println("cgo")
		return 0
	case err != nil:
		fmt.Println(err)
		return 1
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				c := Caller{UID: uint32(30000 + i), GID: 1}
				for _, run := range []func(func() error) error{
					func(fn func() error) error { return RunAs(c, fn) },
					func(fn func() error) error { return CreateAs(c, fn) },
					Confined,
				} {
					if err := run(func() error { return nil }); err != nil {
						fmt.Println(err)
					}
				}
			}
		})
	}
	wg.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(threads) < 2 {
		fmt.Println("threads:", threads, err)
		return 1
	}
	bad := 0
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		_, after, _ := strings.Cut(string(status), "CapEff:")
		caps, err := strconv.ParseUint(strings.Fields(after)[0], 16, 64)
		if err != nil || caps&(1<<given) != 0 || caps&(1<<unix.CAP_CHOWN) == 0 {
			fmt.Printf("%s: %x, %v\n", path, caps, err)
			bad++
		}
	}
	return bad
}

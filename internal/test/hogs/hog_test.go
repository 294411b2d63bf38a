package hogs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// orders are what a hog is told.
type orders struct {
	Mount string
	Dir   string   // on the mount, the hog's own
	Pages string   // host:port of the page service
	Users []uint32 // the honest clients
	Long  bool     // the run has the time for more of everything
}

// hog is a running attack. It may do anything and expects nothing: whatever it is answered
// is only counted.
type hog struct {
	orders
	*hostile.Self

	mu     sync.Mutex
	counts counts
}

// counts says how many of a hog's steps succeeded, and how others failed.
type counts map[string]int

func (c counts) String() string {
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(c), func(a, b string) int { return c[b] - c[a] }) {
		parts = append(parts, fmt.Sprintf("%d %s", c[name], name))
	}
	return strings.Join(parts, ", ")
}

// try counts a step and reports whether it succeeded.
func (h *hog) try(err error) bool {
	name := "done"
	if err != nil {
		name = "failed"
		var errno syscall.Errno
		if errors.As(err, &errno) {
			name = unix.ErrnoName(errno)
		}
	}
	h.count(name)
	return err == nil
}

func (h *hog) count(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[name]++
}

// rest pauses, so that a hog presses on the daemon and not on the processor.
func (h *hog) rest(d time.Duration) {
	select {
	case <-h.Stopped():
	case <-time.After(d):
	}
}

// many returns how much of something the hog takes, in a short run and in a long one.
func (h *hog) many(short, long int) int {
	if h.Long {
		return long
	}
	return short
}

// attack returns the program of a hog: the step is repeated until the hog is stopped.
func attack(step func(h *hog) error) hostile.Program {
	return func(s *hostile.Self) error {
		h := &hog{Self: s, counts: counts{}}
		if err := s.Args(&h.orders); err != nil {
			return err
		}
		beNice()
		if err := s.Report("ready"); err != nil {
			return err
		}
		for s.Running() {
			if err := step(h); err != nil {
				h.try(err)
				h.rest(10 * time.Millisecond)
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		return s.Report(h.counts)
	}
}

// beNice lowers the priority of all threads to the lowest; new ones inherit it.
func beNice() {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)
		}
	}
}

// allFiles lets this process open as many files as the system allows it.
func allFiles() {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		r.Cur = r.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &r)
	}
}

// disk returns the path of a file in the part of the data directory that hangs.
func (h *hog) disk(i int) string {
	return filepath.Join(h.Mount, "disk", fmt.Sprintf("f%d", i%diskFiles))
}

// hogs are the attacks by name; instances is how many processes of the same user run one.
func hogs() map[string]struct {
	step      func(h *hog) error
	instances int
} {
	return map[string]struct {
		step      func(h *hog) error
		instances int
	}{
		"address-space":  {addressSpace, 1},
		"registrations":  {registrations, 1},
		"targets":        {oddTargets, 1},
		"forks":          {forks, 1},
		"open-files":     {openFiles, 3},
		"nodes":          {nodes, 1},
		"deep":           {deep, 1},
		"set-conf":       {setConf, 1},
		"hung-calls":     {hungCalls, 1},
		"hung-removals":  {hungRemovals, 1},
		"hung-requests":  {hungRequests, 2},
		"large-requests": {largeRequests, 1},
		"depth":          {depth, 1},
		"stalled-rings":  {stalledRings, 1},
		"semaphores":     {semaphores, 1},
		"words":          {words, 2},
		"ring-object":    {ringObject, 1},
		"iov-object":     {iovObject, 1},
		"pages-keys":     {pagesKeys, 1},
		"pages-slow":     {pagesSlow, 1},
		"pages-silent":   {pagesSilent, 1},
	}
}

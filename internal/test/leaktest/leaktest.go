// Package leaktest fails a package's tests when they leave something behind:
// goroutines, file descriptors, shared mappings or objects in /dev/shm.
package leaktest

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/goleak"
)

// settleTime bounds how long Main waits for what is about to end, such as a goroutine
// that has been told to stop, or a process in a call of a directory that another package's
// test has hanging for a while.
const settleTime = 20 * time.Second

// Main runs the tests of a package and returns the status to exit with: non-zero if
// a test failed or if the process holds something that it did not hold before. m is a
// *testing.M, or something that cleans up after one.
// Options go to goleak, for goroutines that another package keeps on purpose; say
// why beside each.
//
//	func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }
func Main(m interface{ Run() int }, options ...goleak.Option) int {
	before := take()
	status := m.Run()
	if status == 0 {
		status = report(os.Stderr, before, options...)
	}
	return status
}

// report writes what is left and returns 1, or 0 where nothing is.
func report(w io.Writer, before snapshot, options ...goleak.Option) int {
	var left []string
	for deadline := time.Now().Add(settleTime); ; time.Sleep(20 * time.Millisecond) {
		left = take().since(before)
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if err := goleak.Find(options...); err != nil {
		left = append(left, err.Error())
	}
	if len(left) == 0 {
		return 0
	}
	fmt.Fprintf(w, "the tests left behind:\n\t%s\n", strings.Join(left, "\n\t"))
	return 1
}

// snapshot counts what the process holds, by name.
type snapshot map[string]int

func take() snapshot {
	s := snapshot{}
	descriptors(s)
	mappings(s)
	objects(s)
	return s
}

// since lists what s has more of than before.
func (s snapshot) since(before snapshot) []string {
	var more []string
	for name, n := range s {
		if n > before[name] {
			more = append(more, fmt.Sprintf("%s (%d, before %d)", name, n, before[name]))
		}
	}
	slices.Sort(more)
	return more
}

// runtimeFiles are descriptors that the Go runtime and its packages open once and
// keep: its poller, the reader of /proc and random numbers.
var runtimeFiles = regexp.MustCompile(`^(anon_inode:\[(eventpoll|eventfd)\]|/dev/u?random|/dev/null)$`)

func descriptors(s snapshot) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || runtimeFiles.MatchString(target) || strings.HasPrefix(target, "/proc/") {
			continue
		}
		// The number tells sockets and pipes apart; it says nothing to a reader.
		target, _, _ = strings.Cut(target, ":[")
		s["descriptor of "+target]++
	}
}

// mappings counts shared mappings of files, which are those of iovs, rings and
// arenas.
func mappings(s snapshot) {
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) >= 6 && strings.HasSuffix(f[1], "s") {
			s["mapping of "+strings.Join(f[5:], " ")]++
		}
	}
}

// objects counts what this process made in /dev/shm: names with its process id.
func objects(s snapshot) {
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		return
	}
	mine := regexp.MustCompile(`(^|[^0-9])` + strconv.Itoa(os.Getpid()) + `([^0-9]|$)`)
	for _, e := range entries {
		if mine.MatchString(e.Name()) {
			s["object /dev/shm/"+e.Name()]++
		}
	}
}

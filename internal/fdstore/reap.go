package fdstore

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reap lets the children go that have ended and that Hold has not started: process 1 inherits them. It is called where Hold starts
// processes, and so never takes the end of one of those.
func (h *holder) reap() {
	if h.Children == nil {
		return
	}
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		children, _ := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		for text := range strings.FieldsSeq(string(children)) {
			if pid, err := strconv.Atoi(text); err == nil && (h.now == nil || pid != h.now.pid) {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it lives, or it is gone now
			}
		}
	}
}

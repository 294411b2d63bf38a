package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// awaitNoneStuck returns when no thread of this process waits for something that no signal ends, or with an error that names them.
// Executing a program ends all threads, and hangs for ever on one that does not end: in a call to a dead disk, or in one on a mount that this
// very process serves.
func awaitNoneStuck(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		stuck := stuckThreads()
		if len(stuck) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("threads of this process wait for what no signal ends, a disk or a server that does not answer, and its program cannot be replaced before: %s", strings.Join(stuck, ", "))
		case <-time.After(pause):
		}
	}
}

func stuckThreads() (all []string) {
	tasks, _ := filepath.Glob("/proc/self/task/[0-9]*")
	for _, task := range tasks {
		stat, err := os.ReadFile(task + "/stat")
		at := strings.LastIndexByte(string(stat), ')')
		if err != nil || at < 0 || at+2 >= len(stat) {
			continue // it has ended
		}
		where, _ := os.ReadFile(task + "/wchan")
		if stat[at+2] == 'D' || isWaitForFUSE(string(where)) {
			all = append(all, fmt.Sprintf("%s in %s", filepath.Base(task), where))
		}
	}
	return all
}

// isWaitForFUSE reports whether a thread waits for the answer of a file system behind FUSE. A signal does not end that once the
// request was read.
func isWaitForFUSE(where string) bool {
	switch where {
	case "request_wait_answer", "__fuse_simple_request", "__fuse_request_send", "fuse_simple_request":
		return true
	}
	return false
}

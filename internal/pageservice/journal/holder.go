package journal

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// holder names the process that holds the lock of a file, if the kernel says so.
func holder(f *os.File) string {
	const unknown = "another process"
	var st syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &st) != nil {
		return unknown
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return unknown
	}
	defer locks.Close()
	inode := fmt.Sprintf(":%d", st.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK ADVISORY WRITE 4711 08:01:123456 0 EOF
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		name, err := os.ReadFile("/proc/" + f[4] + "/comm")
		if err != nil {
			return "process " + f[4]
		}
		return fmt.Sprintf("process %s (%s)", f[4], strings.TrimSpace(string(name)))
	}
	return unknown
}

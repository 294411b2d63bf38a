package host

import (
	"os"
	"strconv"
	"strings"
)

// Process is a running program.
type Process struct {
	PID   int
	State string // as printed by ps: R, S, D, T, Z ...
	Args  []string
}

// Processes lists the visible processes. It may hang: the kernel locks each process to
// read its arguments, and a stuck process may hold that lock.
func (h Host) Processes() ([]Process, error) {
	entries, err := os.ReadDir(h.Path("/proc"))
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p := Process{PID: pid}
		if p.Args, err = h.Args(pid); err != nil || len(p.Args) == 0 { // has ended, or is a kernel thread
			continue
		}
		stat, _ := h.read("/proc/" + e.Name() + "/stat")
		p.State = parseState(stat)
		all = append(all, p)
	}
	return all, nil
}

// Args returns the command line of a process, empty for a kernel thread. It may hang for
// the same reason as Processes.
func (h Host) Args(pid int) ([]string, error) {
	text, err := h.read("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if text = strings.TrimRight(text, "\x00"); err != nil || text == "" {
		return nil, err
	}
	return strings.Split(text, "\x00"), nil
}

// parseState finds the state after the program's name, which is in parentheses and may
// contain parentheses.
func parseState(stat string) string {
	after := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(after) == 0 {
		return ""
	}
	return after[0]
}

// Environ looks up a variable in the environment that a process was started with. It may
// hang for the same reason as Processes.
func (h Host) Environ(pid int, name string) (value string, set bool, err error) {
	text, err := h.read("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return "", false, err
	}
	for entry := range strings.SplitSeq(text, "\x00") {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			return v, true, nil
		}
	}
	return "", false, nil
}

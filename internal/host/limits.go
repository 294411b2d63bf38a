package host

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Unlimited means that there is no limit.
const Unlimited = math.MaxInt64

// Limit is a resource limit of a process.
type Limit struct{ Soft, Hard int64 }

// Names of limits in the result of Limits.
const (
	OpenFiles    = "Max open files"
	LockedMemory = "Max locked memory" // bytes
)

// Limits returns the resource limits of a process, keyed by the kernel's names. pid is a
// number or "self".
func (h Host) Limits(pid string) (map[string]Limit, error) {
	text, err := h.read("/proc/" + pid + "/limits")
	if err != nil {
		return nil, err
	}
	return ParseLimits(text)
}

// ParseLimits returns the limits in the text of a /proc/PID/limits.
func ParseLimits(text string) (map[string]Limit, error) {
	all := parseLimits(text)
	if len(all) == 0 {
		return nil, errors.New("the text of /proc/PID/limits has no line with a limit")
	}
	return all, nil
}

// parseLimits reads the kernel's table, whose first column is 25 bytes wide and
// contains spaces.
func parseLimits(text string) map[string]Limit {
	const nameWidth = 25
	all := map[string]Limit{}
	for line := range strings.Lines(text) {
		if len(line) <= nameWidth {
			continue
		}
		values := strings.Fields(line[nameWidth:])
		if len(values) < 2 {
			continue
		}
		soft, ok := parseLimit(values[0])
		hard, okToo := parseLimit(values[1])
		if name := strings.TrimSpace(line[:nameWidth]); ok && okToo && name != "" {
			all[name] = Limit{Soft: soft, Hard: hard}
		}
	}
	return all
}

func parseLimit(s string) (int64, bool) {
	if s == "unlimited" {
		return Unlimited, true
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, false
	}
	return int64(min(n, Unlimited)), true
}

package host

import (
	"fmt"
	"strconv"
	"strings"
)

// Kernel is a Linux version.
type Kernel struct {
	Major, Minor int
	Release      string // as printed by uname -r
}

// AtLeast reports whether k is the given version or a later one.
func (k Kernel) AtLeast(major, minor int) bool {
	return k.Major > major || k.Major == major && k.Minor >= minor
}

// Kernel returns the version of the running kernel.
func (h Host) Kernel() (Kernel, error) {
	text, err := h.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return Kernel{}, err
	}
	return parseKernel(strings.TrimSpace(text))
}

func parseKernel(release string) (Kernel, error) {
	k := Kernel{Release: release}
	major, rest, _ := strings.Cut(release, ".")
	minor := rest
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		minor = rest[:end]
	}
	var err error
	if k.Major, err = strconv.Atoi(major); err == nil {
		k.Minor, err = strconv.Atoi(minor)
	}
	if err != nil {
		return k, fmt.Errorf("kernel release %.40q does not begin with a version such as 6.9", release)
	}
	return k, nil
}

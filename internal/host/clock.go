package host

import (
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot is a clock that nobody sets, and that goes on while the machine is suspended, which
// Go's own monotonic clock does not. Only its differences mean something.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // every kernel that runs this has it
	}
	return time.Duration(t.Nano())
}

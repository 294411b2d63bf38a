package main

import (
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
)

// slowIO is the value of --slow-io: a duration, 0 for off.
type slowIO time.Duration

const mostSlowIO = time.Hour

// UnmarshalText reads off, or a duration such as 1s.
func (s *slowIO) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*s = 0
		return nil
	}
	d, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither off nor a duration, e.g. 1s", text)
	case d < ringserver.SlowIOLeast || d > mostSlowIO:
		return fmt.Errorf("%v is out of range; it must be off or %v to 1h", d, ringserver.SlowIOLeast)
	}
	*s = slowIO(d)
	return nil
}

func (s slowIO) String() string {
	if s == 0 {
		return "off"
	}
	return time.Duration(s).String()
}

package main

import (
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/internal/daemon"
)

// lateWrites is how late a write may still arrive: a duration, or auto.
type lateWrites time.Duration

// UnmarshalText reads auto, or a duration such as 90s.
func (t *lateWrites) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*t = lateWrites(daemon.Auto)
		return nil
	}
	d, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither auto nor a duration, e.g. 90s", text)
	case d < 0 || d > 24*time.Hour:
		return fmt.Errorf("%v is out of range; it must be auto or 0s to 24h", d)
	}
	*t = lateWrites(d)
	return nil
}

func (t lateWrites) String() string {
	if t == lateWrites(daemon.Auto) {
		return "auto"
	}
	return time.Duration(t).String()
}

package main

import (
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/internal/daemon"
)

// cacheTime is how long the kernel may cache something: a duration, or auto.
type cacheTime time.Duration

// UnmarshalText reads auto, or a duration such as 30s.
func (t *cacheTime) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*t = cacheTime(daemon.Auto)
		return nil
	}
	d, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither auto nor a duration, e.g. 30s", text)
	case d < 0:
		return fmt.Errorf("%v is out of range; it must be auto or 0s to 8760h", d)
	}
	*t = cacheTime(d)
	return nil
}

func (t cacheTime) String() string {
	if t == cacheTime(daemon.Auto) {
		return "auto"
	}
	return time.Duration(t).String()
}

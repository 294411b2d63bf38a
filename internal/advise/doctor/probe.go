package doctor

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Probe executes one probe in this process and writes its answer, as runProbe reads it.
// It may hang.
func Probe(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("probe: no request given")
	}
	var answer any
	var err error
	switch what, args := args[0], args[1:]; {
	case what == "mount" && len(args) == 1:
		answer = probeMount(args[0])
	case what == "beneath" && len(args) == 1:
		answer = probeBeneath(args[0])
	case what == "ring" && len(args) == 1:
		answer = probeRing(args[0])
	case what == "trip" && len(args) == 2:
		answer, err = probeTrip(args[0], args[1])
	case what == "container" && len(args) == 1:
		answer = probeContainer(args[0])
	case what == "data" && len(args) == 1:
		answer = probeData(args[0])
	case what == "held" && len(args) == 2:
		answer, err = probeHeld(args[0], args[1])
	case what == "disk" && len(args) == 1:
		answer = probeDisk(args[0])
	case what == "file" && len(args) == 1:
		answer = probeFile(args[0])
	case what == "paths":
		answer = probePaths(args)
	case what == "absolute" && len(args) == 1:
		answer, err = filepath.Abs(args[0])
	case what == "exists" && len(args) == 1:
		answer = exists(args[0])
	case what == "command" && len(args) == 1:
		answer, err = probeCommand(args[0])
	case what == "module" && len(args) == 1:
		return probeModule(args[0])
	case what == "library" && len(args) == 1:
		answer = probeLibrary(args[0])
	case what == "processes" && len(args) == 0:
		answer = probeProcesses()
	default:
		return fmt.Errorf("probe: unknown request %q with %d arguments", what, len(args))
	}
	if err != nil {
		return err
	}
	return gob.NewEncoder(out).Encode(answer) // not JSON, which cannot hold paths that are not UTF-8
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// probeError is an error that a probe sends to the doctor. The zero value means no
// error.
type probeError struct {
	Errno syscall.Errno
	Text  string
}

func probeErrorOf(err error) (t probeError) {
	if err != nil {
		t.Text = err.Error()
		errors.As(err, &t.Errno)
	}
	return t
}

func (t probeError) failed() bool { return t.Text != "" }

func (t probeError) is(errnos ...syscall.Errno) bool {
	for _, e := range errnos {
		if t.Errno == e {
			return true
		}
	}
	return false
}

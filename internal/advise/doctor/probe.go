package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Probe does in this process what a doctor asked of it, and writes the answer
// for the doctor to read. It may hang.
func Probe(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("probe: which?")
	}
	var answer any
	var err error
	switch what, args := args[0], args[1:]; {
	case what == "mount" && len(args) == 1:
		answer = probeMount(args[0])
	case what == "ring" && len(args) == 1:
		answer = probeRing(args[0])
	case what == "data" && len(args) == 1:
		answer = probeData(args[0])
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
		answer, err = probeModule(args[0])
	case what == "library" && len(args) == 1:
		answer = probeLibrary(args[0])
	case what == "processes" && len(args) == 0:
		answer = probeProcesses()
	default:
		return fmt.Errorf("probe: no %q with %d arguments", what, len(args))
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// trouble is an error that crosses from a probe to the doctor. Its zero value
// is none.
type trouble struct {
	Errno syscall.Errno `json:"errno,omitempty"`
	Text  string        `json:"text,omitempty"`
}

func troubleOf(err error) (t trouble) {
	if err != nil {
		t.Text = err.Error()
		errors.As(err, &t.Errno)
	}
	return t
}

func (t trouble) any() bool { return t.Text != "" }

func (t trouble) is(errnos ...syscall.Errno) bool {
	for _, e := range errnos {
		if t.Errno == e {
			return true
		}
	}
	return false
}

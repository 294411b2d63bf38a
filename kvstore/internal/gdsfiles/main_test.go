package gdsfiles

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(run{m})) }

// run is the tests of this package, which share a process with the replay of LMCache's backend.
type run struct{ *testing.M }

func (r run) Run() int {
	status := r.M.Run()
	if p := running.Load(); p != nil {
		_ = p.in.Close()
		if err := p.cmd.Wait(); err != nil {
			fmt.Fprintln(os.Stderr, "the replay of LMCache's backend:", err)
			return 1
		}
	}
	return status
}

// replaying is the process. It takes requests one by one.
type replaying struct {
	cmd  *exec.Cmd
	in   io.Closer
	to   *json.Encoder
	from *json.Decoder
}

var (
	running     atomic.Pointer[replaying]
	startReplay = sync.OnceValue(newReplaying)
)

// newReplaying starts the process, and returns nil where there is no Python.
func newReplaying() *replaying {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil
	}
	cmd := exec.Command(python, "../../../internal/layout/gds/testdata/backend.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		panic(err)
	}
	p := &replaying{cmd, in, json.NewEncoder(in), json.NewDecoder(out)}
	running.Store(p)
	return p
}

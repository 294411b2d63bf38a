package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
)

// childVariable makes a test binary a host that leads, see child.
const childVariable = "KV3FS_TEST_CLUSTER_HOST"

// childConfig is the part of a Config that a child needs.
type childConfig struct {
	Endpoints      []string
	Prefix, HostID string
	LeaseTTL       time.Duration
}

// child leads, says "leads", and then says what it holds of itself whenever it has not run for a second.
func child() {
	var told childConfig
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := json.Unmarshal([]byte(os.Getenv(childVariable)), &told); err != nil {
		fail(err)
	}
	c, err := Open(context.Background(), Config{Endpoints: told.Endpoints, Prefix: told.Prefix, HostID: told.HostID, LeaseTTL: told.LeaseTTL})
	if err != nil {
		fail(err)
	}
	term, err := c.Campaign(context.Background())
	if err != nil {
		fail(err)
	}
	fmt.Println("leads", term.Key, term.Revision)
	for at := host.SinceBoot(); ; {
		time.Sleep(time.Millisecond)
		now := host.SinceBoot()
		if now-at > time.Second {
			fmt.Println("woke", int64(now), term.Valid())
			now = host.SinceBoot()
		}
		at = now
	}
}

// process is a host of its own.
type process struct {
	cmd  *exec.Cmd
	says *bufio.Scanner
}

// startChild starts a host that leads, and returns it with a copy of its term.
func startChild(t *testing.T, config Config) (*process, *Term) {
	t.Helper()
	text, err := json.Marshal(childConfig{config.Endpoints, config.Prefix, config.HostID, config.LeaseTTL})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, says: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	term := &Term{}
	if said := p.next(t, "leads"); len(said) != 2 {
		t.Fatalf("%q", said)
	} else if _, err := fmt.Sscan(said[1], &term.Revision); err != nil {
		t.Fatal(err)
	} else {
		term.Key = said[0]
	}
	return p, term
}

// next returns what follows a word.
func (p *process) next(t *testing.T, word string) []string {
	t.Helper()
	for p.says.Scan() {
		fields := strings.Fields(p.says.Text())
		if len(fields) > 0 && fields[0] == word {
			return fields[1:]
		}
		t.Fatalf("the host says %q", p.says.Text())
	}
	t.Fatalf("the host has ended: %v", p.says.Err())
	return nil
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

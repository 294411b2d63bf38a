package rights

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

func TestMain(m *testing.M) {
	os.Exit(hostile.Main(m, map[string]hostile.Program{"steps": stepsProgram}))
}

// serve starts a daemon over data, as root.
func serve(t *testing.T, data string, flags ...string) *daemontest.Daemon {
	t.Helper()
	daemontest.NeedRoot(t)
	return daemontest.ServeWith(t, daemontest.Options{
		Data: data, Flags: append([]string{"--drain", "1s", "--pages-listen", "off"}, flags...),
	})
}

// routes are the ways that bytes can take through the mount, as flags of the daemon.
var routes = []struct {
	name  string
	flags []string
}{
	{"passthrough", nil},
	{"through the daemon", []string{"--passthrough", "off", "--io", "direct"}},
}

// root acts in this process.
var root = hostile.User{}

// do runs steps as u, which may be root.
func do(t *testing.T, u hostile.User, mount string, steps ...step) []outcome {
	t.Helper()
	var got []outcome
	if u.ID == 0 {
		c := &client{mount: mount}
		defer c.close()
		got = c.run(steps)
	} else {
		hostile.Run(t, u, "steps", stepsArgs{Mount: mount, File: writeSteps(t, steps)}, &got)
	}
	if len(got) != len(steps) {
		t.Fatalf("%d outcomes of %d steps", len(got), len(steps))
	}
	return got
}

package conformance

import (
	"bufio"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// A process that is killed with files open for writing ends although the daemon is stopped:
// the kernel closes its files without a question.
func TestExitWhileDaemonIsStopped(t *testing.T) {
	for _, passthrough := range []string{"auto", "off"} {
		t.Run("passthrough "+passthrough, func(t *testing.T) {
			data, err := os.MkdirTemp("/dev/shm", "kv3fs-test-") // a local file system, wherever this runs
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(data) })
			w := start(t, daemontest.Options{Data: data, Flags: []string{"--passthrough", passthrough}})
			writer := exec.Command("sh", "-c", `exec 3>"$1" && echo content >&3 && echo ready && read _`, "sh", w.Mount+"/f")
			in, errIn := writer.StdinPipe()
			out, errOut := writer.StdoutPipe()
			if errIn != nil || errOut != nil {
				t.Fatal(errIn, errOut)
			}
			defer in.Close()
			if err := writer.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			w.Freeze(t)
			_ = writer.Process.Kill()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = writer.Wait()
			}()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("a killed process waits for the daemon")
			}
			w.Thaw(t)
			<-ended
		})
	}
}

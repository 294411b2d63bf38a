package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// TestNextStartNamesHolders checks that a daemon names the processes that can still change files
// behind its back, for as long as they can: those that have them open if the daemon before it was
// killed, and those that have them mapped.
func TestNextStartNamesHolders(t *testing.T) {
	daemontest.NeedRoot(t) // nobody else can mount over a dead mount
	for how, end := range map[string]func(*world){
		"killed":  func(w *world) { w.Kill() },
		"cut off": func(w *world) { w.signal(t, syscall.SIGTERM) },
	} {
		t.Run(how, func(t *testing.T) {
			w := start(t, daemontest.Options{Flags: []string{"--drain", "100ms"}})
			if !w.passthrough() {
				t.Skip("without passthrough nothing goes on")
			}
			f, err := os.Create(w.Mount + "/held")
			must(t, err)
			defer f.Close()
			var held []byte
			if how != "killed" {
				must(t, f.Truncate(4096))
				held, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				must(t, err)
				must(t, f.Close())
			}
			const said = "processes still hold files of a daemon that has ended"
			names := func(want bool) {
				t.Helper()
				log := w.Log()
				if strings.Contains(log, said) != want || want && !strings.Contains(log, filepath.Base(os.Args[0])[:10]) {
					t.Errorf("holders are named: %v, want %v:\n%s", !want, want, log)
				}
			}
			names(false)
			for range 2 { // the second daemon ends well
				end(w)
				end = func(w *world) { w.signal(t, syscall.SIGTERM) }
				w.Start(t)
				names(true)
			}
			if held != nil {
				must(t, unix.Munmap(held))
			} else {
				must(t, f.Close())
			}
			w.signal(t, syscall.SIGTERM)
			w.Start(t)
			names(false)
		})
	}
}

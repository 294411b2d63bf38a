package leaktest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Each kind of leak is found, and named.
func TestReportNamesWhatIsLeft(t *testing.T) {
	before := take()
	if status := report(os.Stderr, before); status != 0 {
		t.Fatal("a process that holds nothing more is said to leak")
	}
	name := fmt.Sprintf("/dev/shm/leaktest-%d", os.Getpid())
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(name)
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	stop := make(chan struct{})
	defer close(stop)
	go waitFor(stop)

	var out strings.Builder
	if status := report(&out, before); status == 0 {
		t.Fatal("nothing was found")
	}
	for _, want := range []string{"descriptor of " + name, "mapping of " + name, "object " + name, "waitFor"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not name %q:\n%s", want, out.String())
		}
	}
}

func waitFor(stop chan struct{}) { <-stop }

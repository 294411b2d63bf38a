package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// shownStatus is what kv3fs status --json prints.
type shownStatus struct {
	Health  string
	Daemons []struct {
		Mount, Data, Health, Error string
		Status                     *api.Status
	}
	Others []struct{ Mount, Error string }
}

// A daemon is found by its mount, its data directory and what is below them; its exit status says how it is: also of one that
// hangs, and once it has stopped.
func TestStatus(t *testing.T) {
	o := operate(t, "--capacity", "1G")
	o.write("models/x", 5000)
	looked := func() bool {
		out, _, _ := o.try("/", "status", "--json", o.Mount)
		var is shownStatus
		return json.Unmarshal([]byte(out), &is) == nil && len(is.Daemons) == 1 && is.Daemons[0].Status != nil && is.Daemons[0].Status.Findings != nil
	}
	for end := time.Now().Add(2 * time.Minute); !looked(); { // on a busy host the doctor takes longer than one status waits
		if time.Now().After(end) {
			t.Fatal("its doctor does not look")
		}
	}
	well := map[string]int{"healthy": 0, "warnings": exitWarnings} // this host may have warnings
	for _, path := range []string{o.Mount, o.Data, filepath.Join(o.Data, "models"), filepath.Join(o.Mount, "models")} {
		out, errs, status := o.try("/", "status", "--json", path)
		var is shownStatus
		if err := json.Unmarshal([]byte(out), &is); err != nil {
			t.Fatalf("%v: %s%s", err, out, errs)
		}
		checkJSON(t, "status", out)
		if want, ok := well[is.Health]; !ok || status != want || len(is.Daemons) != 1 || is.Daemons[0].Mount != o.Mount || is.Daemons[0].Data != o.Data || is.Daemons[0].Health != is.Health {
			t.Fatalf("%s: status %d: %s%s", path, status, out, errs)
		}
		if s := is.Daemons[0].Status; s == nil || s.PID != o.PID() || s.Keeper == nil || s.Keeper.LimitBytes != 1e9 || s.Findings == nil {
			t.Errorf("%s: %s", path, out)
		}
	}
	out, errs, status := o.try("/", "status", o.Mount)
	for _, want := range []string{"serves ", o.Data + " at " + o.Mount, "954 MiB", "ready ", "doctor ", "limits "} {
		if !strings.Contains(out, want) || status != 0 && status != exitWarnings {
			t.Errorf("status %d, no %q: %s%s", status, want, out, errs)
		}
	}
	if out, _, _ := o.try("/", "status"); !strings.Contains(out, o.Mount) { // among others
		t.Error(out)
	}
	if out, errs, status := o.try("/", "status", "/proc"); status != exitNothingRuns || !strings.Contains(out, "neither a mount of kv3fs nor a data directory") || errs != "" {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	o.Freeze(t)
	out, errs, status = o.try("/", "status", "--timeout", "1s", o.Mount)
	if o.Thaw(t); status != exitUnhealthy || !strings.Contains(out, o.Mount) || !strings.Contains(out, "does not answer") {
		t.Errorf("frozen: status %d: %s%s", status, out, errs)
	}
	if err := o.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := o.try("/", "status", "--json", o.Data); status != exitNothingRuns || !strings.Contains(out, `"health": "nothing runs"`) {
		t.Errorf("stopped: status %d: %s%s", status, out, errs)
	}
}

// A data directory whose name would change a terminal is shown as text.
func TestStatusOfHostileNames(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	data := filepath.Join(t.TempDir(), "a\x1b[31m\"b\n\xffc")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	o := &operated{t, daemontest.ServeWith(t, daemontest.Options{Binary: bin, Data: data, Flags: []string{"--drain", "1s", "--pages-listen", "off"}}), bin}
	out, errs, _ := o.try("/", "status", o.Mount)
	if strings.Contains(out, "\x1b") || strings.Contains(out, "\xff") || !strings.Contains(out, `a\x1b[31m"b\n\xffc`) || errs != "" {
		t.Errorf("%q%s", out, errs)
	}
	out, _, _ = o.try("/", "status", "--json", data)
	var whole struct {
		Daemons []struct {
			Status struct {
				NotUTF8 map[string][]byte `json:"not_utf8"`
			}
		}
		NotUTF8 map[string][]byte `json:"not_utf8"`
	}
	if err := json.Unmarshal([]byte(out), &whole); err != nil || string(whole.NotUTF8["/daemons/0/data"]) != data || string(whole.Daemons[0].Status.NotUTF8["/data"]) != data {
		t.Errorf("%v: %s", err, out)
	}
}

// A mount that another user has made and that hangs is named, and changes neither the health nor the exit status; asked for, it is unhealthy.
// The test does this in a process with mounts of its own: no other test may meet that mount.
func TestStatusBesideHungMount(t *testing.T) {
	if os.Geteuid() != 0 {
		daemontest.NotTested(t, "only root makes mounts of other users")
	}
	const variable = "KV3FS_TEST_BESIDE_HUNG_MOUNT"
	if inside := os.Getenv(variable); inside != "" {
		bin, mount, _ := strings.Cut(inside, "\n")
		besideHungMount(t, &operated{t: t, bin: bin}, mount)
		return
	}
	o := operate(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestStatusBesideHungMount$", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+o.bin+"\n"+o.Mount)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func besideHungMount(t *testing.T, o *operated, mount string) {
	mounts, err := host.Local().Mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.Type == host.HF3FSType && m.Point != mount {
			_ = unix.Unmount(m.Point, unix.MNT_DETACH) // of another test, and of this namespace only
		}
	}
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	hung := t.TempDir()
	if err := unix.Mount("hf3fs.x", hung, host.HF3FSType, 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=65534,group_id=65534,allow_other", fuse)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmp.Or(unix.Close(fuse), unix.Unmount(hung, unix.MNT_DETACH), unix.Unmount(mount, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	}()
	status := func(args ...string) (is shownStatus, exit int) {
		out, errs, exit := o.try("/", append([]string{"status", "--json"}, args...)...)
		if err := json.Unmarshal([]byte(out), &is); err != nil {
			t.Errorf("%v: %s%s", err, out, errs)
		}
		return is, exit
	}
	// What does not answer within seconds is taken for hung, and on a busy machine that may be the daemon for once.
	healthy := func(hung []string, args ...string) {
		var is shownStatus
		var exit int
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
			is, exit = status(args...)
			var others []string
			for _, m := range is.Others {
				others = append(others, m.Mount)
			}
			if (exit == 0 || exit == exitWarnings) && len(is.Daemons) == 1 && slices.Equal(others, hung) {
				return
			}
		}
		t.Errorf("status %v: %d: %+v", args, exit, is)
	}
	healthy([]string{hung})
	healthy(nil, mount)
	if is, exit := status(hung); exit != exitUnhealthy || len(is.Daemons) != 1 || is.Daemons[0].Mount != hung {
		t.Errorf("of it: status %d: %+v", exit, is)
	}
}

package doctor

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// checkContainer tries a ring from a mount namespace with a /dev/shm of its own, as that of an engine in a container is. It
// tries dirs in turn until it can create a file there.
func checkContainer(ctx context.Context, o *Options, dirs []string) Finding {
	var facts ringFacts
	var err error
	for _, dir := range dirs {
		facts, err = runProbeAs[ringFacts](ctx, o, ringTimeout, ownNamespace(o.Host.EUID), "container", dir)
		if err != nil || !facts.CreateErr.failed() {
			break
		}
	}
	return judgeContainer(facts, err)
}

// ownNamespace makes a process begin in a mount namespace of its own. Who is not root becomes so in a user namespace.
func ownNamespace(euid int) *syscall.SysProcAttr {
	if euid == 0 {
		return &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: euid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
}

// judgeContainer judges a round trip from there; err says why there was none.
func judgeContainer(f ringFacts, err error) Finding {
	const id = "ring.container"
	const onlyThen = "nothing, unless engines run in containers with a " + shm.Dir + " of their own; then run the doctor as root"
	switch {
	case err != nil:
		return Finding{ID: id, Status: Note, Found: fmt.Sprintf("not tried: this user gets no mount namespace of its own: %v", err), Needed: onlyThen}
	case f.SetupErr.failed() || f.CreateErr.failed():
		return Finding{ID: id, Status: Note, Found: "not tried: " + f.SetupErr.Text + f.CreateErr.Text, Needed: onlyThen}
	case f.MissingSemaphore != "" || f.TransferErr.failed():
		found := "a client with a " + shm.Dir + " of its own, as in a container, gets no ring: "
		if f.MissingSemaphore != "" {
			found += f.MissingSemaphore + " is not there"
		}
		return Finding{ID: id, Status: Warning, Found: found + f.TransferErr.Text, Needed: ownShmNeeds, Fix: ownShmFix}
	}
	return ok(id, "so does a client with a %s of its own, as in a container: %v", shm.Dir, f.Elapsed.Round(10*time.Microsecond))
}

// probeContainer is probeRing after a tmpfs was mounted at /dev/shm, in this process's own mount namespace.
func probeContainer(dir string) ringFacts {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("tmpfs", shm.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=16m")
	}
	if err != nil {
		return ringFacts{SetupErr: probeErrorOf(fmt.Errorf("mount a tmpfs at %s: %w", shm.Dir, err))}
	}
	return probeRing(dir)
}

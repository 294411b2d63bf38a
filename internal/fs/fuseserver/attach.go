package fuseserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// attach mounts a new FUSE connection at point and returns its descriptor. replace: a dead daemon's mount is there, whose place it
// takes if it can; else it covers that.
func attach(point string, o Options, replace bool) (int, error) {
	if os.Geteuid() == 0 {
		if replace {
			if fd, err := replaceDead(point, o); err == nil {
				return fd, nil
			}
		}
		fd, err := attachDirectly(point, o)
		if !errors.Is(err, unix.EPERM) {
			return fd, err
		}
		// Root without CAP_SYS_ADMIN, as in most containers.
	}
	return attachByHelper(point, o)
}

func attachDirectly(point string, o Options) (int, error) {
	fd, options, err := openDevice()
	if err != nil {
		return -1, err
	}
	if err := unix.Mount(source(o), point, fsType, unix.MS_NOSUID|unix.MS_NODEV, strings.Join(options, ",")); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mount %s: %w", point, err)
	}
	return fd, nil
}

// openDevice begins a new connection, and returns the options of its mount.
func openDevice() (fd int, options []string, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	return fd, []string{fmt.Sprint("fd=", fd), "rootmode=40000", fmt.Sprint("user_id=", os.Geteuid()), fmt.Sprint("group_id=", os.Getegid()),
		"default_permissions", "allow_other", fmt.Sprint("max_read=", maxIOBytes)}, nil
}

func source(o Options) string { return subtype + "." + o.Cluster }

// attachByHelper mounts with fusermount, which is set-uid root and passes the descriptor
// back over a socket. It mounts over no dead mount, so that must be removed first.
func attachByHelper(point string, o Options) (int, error) {
	removed, err := removeDead(point)
	if err != nil {
		return -1, err
	}
	if !removed {
		return runHelper(point, o)
	}
	// This descriptor leads to the directory also once it is covered.
	beneath, err := os.Open(point)
	if err != nil {
		return runHelper(point, o)
	}
	defer beneath.Close()
	fd, err := runHelper(point, o)
	const most = 10
	names, _ := beneath.Readdirnames(most)
	o.Log.Warn("a dead mount had to be removed first, because only root can mount over one: for a moment, clients saw the directory beneath",
		"mount", point, "files there", names)
	return fd, err
}

// removeDead detaches the mounts of dead FUSE daemons.
func removeDead(point string) (removed bool, err error) {
	all, err := mountsAt(point)
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if !m.isFUSE() {
			break
		}
		if err := detach(point, true); err != nil {
			return removed, fmt.Errorf("mount point %s: detach the mount of a dead daemon: %w", point, err)
		}
		removed = true
	}
	return removed, nil
}

func runHelper(point string, o Options) (int, error) {
	opts := []string{"fsname=" + source(o), "subtype=" + subtype, "default_permissions",
		fmt.Sprintf("max_read=%d", maxIOBytes), "nosuid", "nodev"}
	if o.AllowOther || os.Geteuid() == 0 {
		if os.Geteuid() != 0 && !userAllowOther() {
			return -1, errors.New("mount for other users: /etc/fuse.conf does not allow it: add a line user_allow_other, run as root, or mount without allow-other")
		}
		opts = append(opts, "allow_other")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pair[0])
	remote := os.NewFile(uintptr(pair[1]), "fusermount socket")
	var stderr bytes.Buffer
	helper := exec.Command(helperName(), "-o", strings.Join(opts, ","), "--", point)
	helper.ExtraFiles = []*os.File{remote}
	helper.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	helper.Stderr = &stderr
	err = helper.Run()
	remote.Close()
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		if strings.Contains(said, "could not determine username") {
			said += fmt.Sprintf("; uid %d needs an entry in /etc/passwd", os.Getuid())
		}
		return -1, fmt.Errorf("mount %s: %w: %s", point, err, said)
	}
	return receiveFD(pair[0])
}

func helperName() string {
	for _, name := range []string{"fusermount3", "fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return "fusermount3"
}

func userAllowOther() bool {
	conf, err := os.ReadFile("/etc/fuse.conf")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(strings.Split(string(conf), "\n"), func(line string) bool {
		return strings.TrimSpace(line) == "user_allow_other"
	})
}

func receiveFD(socket int) (int, error) {
	var data [4]byte
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, data[:], control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("mount helper: sent no descriptor: %w", errors.Join(err, unix.EPROTO))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("mount helper: sent no descriptor: %w", errors.Join(err, unix.EPROTO))
	}
	return fds[0], nil
}

// detach unmounts point. A busy mount fails with EBUSY, unless lazy is set.
func detach(point string, lazy bool) error {
	if os.Geteuid() == 0 {
		flags := unix.UMOUNT_NOFOLLOW
		if lazy {
			flags |= unix.MNT_DETACH
		}
		if err := unix.Unmount(point, flags); !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	flag := "-u"
	if lazy {
		flag = "-uz"
	}
	out, err := exec.Command(helperName(), flag, "--", point).CombinedOutput()
	if err == nil {
		return nil
	}
	if bytes.Contains(out, []byte("busy")) {
		return unix.EBUSY
	}
	return fmt.Errorf("unmount %s: %w: %s", point, err, bytes.TrimSpace(out))
}

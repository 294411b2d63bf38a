package fuseserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// A mount outlives its daemon while somebody holds a descriptor of its device. The kernel tells a
// connection's terms once, in its first request, and takes one answer. So the first daemon records both,
// and a successor shows them to go-fuse in place of the kernel. go-fuse reads from a descriptor's number: first it is
// that of a socket, and then the device's.
const (
	recordFile    = "mount"
	recordVersion = 1
	headerBytes   = 40 // fuse_in_header
	// initBytes is more than the kernel demands of a reader's buffer before its terms are known.
	initBytes = 1 << 17
)

// record is what a successor must know of the mount itself.
type record struct {
	Point   string `json:"point"`
	Cluster string `json:"cluster"`
	Block   uint32 `json:"block"` // Options.BlockBytes
	Minor   int    `json:"minor"`
	Init    []byte `json:"init"`   // the kernel's first request,
	Answer  []byte `json:"answer"` // and the answer
}

// errNothing says that no predecessor has left a mount.
var errNothing = errors.New("no mount was recorded")

func (o *Options) recorded() (*record, error) {
	version, b, err := o.State.Read(recordFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errNothing
	case err != nil:
		return nil, err
	case version != recordVersion:
		return nil, fmt.Errorf("its record has format %d, this version has %d", version, recordVersion)
	}
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if len(r.Init) < headerBytes || len(r.Answer) < answerBytes {
		return nil, errors.New("its record is cut short")
	}
	return r, nil
}

func (o *Options) keep(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return o.State.Write(recordFile, recordVersion, b)
}

// CanAdopt returns why New, with these options, will not take over the mount of Options.Adopt. It changes nothing.
func CanAdopt(t *tree.Tree, point string, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	point, err := canonicalPoint(point)
	if err != nil {
		return err
	}
	m := newMount(point, o)
	_, own, _, err := m.mayAdopt(o, func(int) fuse.RawFileSystem { return fuse.NewDefaultRawFileSystem() }, fuseOptions(o, t.HasACLs()))
	if err == nil {
		unix.Close(own)
	}
	return err
}

// CheckState returns an error if New, with these options, would not take over the mount that another daemon serves and
// keeps in Options.State. acls says whether the data directory has any. It changes nothing.
func CheckState(point string, acls bool, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	point, err := canonicalPoint(point)
	if err != nil {
		return err
	}
	r, err := o.recorded()
	if err != nil {
		return err
	}
	m := newMount(point, o)
	if err := m.isLike(r, o); err != nil {
		return err
	}
	open := map[uint64]*handleRecord{}
	if err := o.State.ReadLog(handlesFile, handlesVersion, func(b []byte) error { return readHandle(open, b) }); err != nil {
		return fmt.Errorf("what its clients have open: %w", err)
	}
	_, answer, err := negotiate(fuse.NewDefaultRawFileSystem(), fuseOptions(o, acls), r.Init) // go-fuse closes its descriptor when that is collected
	if err == nil {
		err = sameTerms(r.Answer, answer)
	}
	return err
}

// adopt takes over the mount that a predecessor has left. It owns the device then.
func (m *Mount) adopt(o Options, newFS func(device int) fuse.RawFileSystem, terms *fuse.MountOptions) (*record, error) {
	r, own, server, err := m.mayAdopt(o, newFS, terms)
	if err != nil {
		return r, err
	}
	if err := server.use(own); err != nil {
		unix.Close(own)
		return r, err
	}
	m.server = server.Server
	_ = o.Adopt.Close()
	return r, nil
}

// mayAdopt looks whether the mount can be taken over, and prepares a server, and a descriptor of the device for it.
func (m *Mount) mayAdopt(o Options, newFS func(device int) fuse.RawFileSystem, terms *fuse.MountOptions) (r *record, own int, server negotiated, err error) {
	if r, err = o.recorded(); err != nil {
		return nil, -1, server, err
	}
	if err = m.fits(r, o); err != nil {
		return r, -1, server, err
	}
	if own, err = unix.FcntlInt(o.Adopt.Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return r, -1, server, err
	}
	server, answer, err := negotiate(newFS(own), terms, r.Init)
	if err == nil {
		err = sameTerms(r.Answer, answer)
	}
	if err == nil && server.KernelSettings().Flags64()&fuse.CAP_HAS_RESEND == 0 {
		err = errors.New("the kernel cannot send again what the daemon before has not answered: use Linux 6.9 or later")
	}
	if err != nil {
		unix.Close(own)
	}
	return r, own, server, err
}

// fits compares what was recorded with what this daemon is to serve.
func (m *Mount) fits(r *record, o Options) error {
	if err := o.Recalled.whyNot(); err != nil {
		return fmt.Errorf("what its clients have open is not known: %w", err)
	}
	if err := m.isLike(r, o); err != nil {
		return err
	}
	if minor, ok := connectionOf(int(o.Adopt.Fd())); ok && minor != r.Minor {
		return fmt.Errorf("the descriptor is of connection %d, and the mount of %d", minor, r.Minor)
	}
	return m.find(r.Minor)
}

// isLike returns an error that says in what a mount is not the one that this daemon is to serve.
func (m *Mount) isLike(r *record, o Options) error {
	switch {
	case r.Point != m.point:
		return fmt.Errorf("it is at %s, and this daemon's is to be at %s", r.Point, m.point)
	case r.Cluster != o.Cluster:
		return fmt.Errorf("its cluster is %q, this daemon's is %q", r.Cluster, o.Cluster)
	case r.Block != o.BlockBytes:
		return fmt.Errorf("its block size is %d, this daemon's is %d", r.Block, o.BlockBytes)
	case hasEnded(int(o.Adopt.Fd())):
		return errors.New("its connection was ended meanwhile")
	}
	return nil
}

func (r *Recalled) whyNot() error {
	if r == nil {
		return errors.New("nobody has looked")
	}
	return r.err
}

// begin is for a new mount whose device is fd: its terms are recorded.
func (m *Mount) begin(o Options, fs fuse.RawFileSystem, terms *fuse.MountOptions, fd int) (*record, error) {
	init := make([]byte, initBytes)
	n, err := readPatiently(fd, init)
	if err != nil {
		return nil, err
	}
	server, answer, err := negotiate(fs, terms, init[:n])
	if err != nil {
		return nil, err
	}
	if _, err := unix.Write(fd, answer); err != nil {
		return nil, err
	}
	if err := server.use(fd); err != nil {
		return nil, err
	}
	m.server = server.Server
	return &record{Point: m.point, Cluster: o.Cluster, Block: o.BlockBytes, Minor: m.minor, Init: init[:n], Answer: answer}, nil
}

// negotiated is a server that has answered the kernel's first request, and reads from a socket.
type negotiated struct {
	*fuse.Server
	number int // of its descriptor
}

// negotiate has go-fuse answer a first request.
func negotiate(fs fuse.RawFileSystem, o *fuse.MountOptions, init []byte) (s negotiated, answer []byte, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return s, nil, err
	}
	defer unix.Close(pair[1])
	if _, err := unix.Write(pair[1], init); err != nil {
		unix.Close(pair[0])
		return s, nil, err
	}
	server, err := fuse.NewServer(fs, "/dev/fd/"+strconv.Itoa(pair[0]), o)
	if err == nil {
		err = presentBuffers(server)
	}
	if err != nil {
		return s, nil, err
	}
	answer = make([]byte, initBytes)
	n, err := readPatiently(pair[1], answer)
	return negotiated{server, pair[0]}, answer[:max(n, 0)], err
}

func readPatiently(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != unix.EINTR && err != unix.ENOENT {
			return max(n, 0), err
		}
	}
}

// use puts the device in the socket's place.
func (s negotiated) use(device int) error { return unix.Dup3(device, s.number, unix.O_CLOEXEC) }

// resendMessage is FUSE_NOTIFY_RESEND: the kernel sends again what was read and not answered.
const resendMessage = 7

// resend is called before anything is read: then only a predecessor's requests come again. It is called just before: a client that is
// killed does not wait for what is to come again, and then what was opened for it is known to nobody.
func resend(device int) error {
	message := make([]byte, 16) // fuse_out_header
	binary.NativeEndian.PutUint32(message, uint32(len(message)))
	binary.NativeEndian.PutUint32(message[4:], resendMessage)
	_, err := unix.Write(device, message)
	return err
}

// answerBytes is how much of an answer says what the terms are: fuse_out_header and the beginning of fuse_init_out.
const answerBytes = 16 + 40

// sameTerms returns an error that says in what the terms of a mount are not those of this daemon. How many requests the kernel sends
// at a time is not asked: it keeps to what it was told.
func sameTerms(has, want []byte) error {
	if len(want) < answerBytes {
		return errors.New("no answer to the kernel's first request")
	}
	var errs []error
	field := func(name string, at, size int) {
		if a, b := has[at:at+size], want[at:at+size]; !bytes.Equal(a, b) {
			slices.Reverse(a)
			slices.Reverse(b)
			errs = append(errs, fmt.Errorf("its %s is 0x%x, this daemon's is 0x%x", name, a, b))
		}
	}
	has, want = slices.Clone(has), slices.Clone(want)
	field("protocol version", 16, 8)
	field("read-ahead", 24, 4)
	field("set of capabilities", 28, 4)
	field("largest write", 36, 4)
	field("time granularity", 40, 4)
	field("number of pages in a request", 44, 2)
	if (binary.LittleEndian.Uint32(has[48:])^binary.LittleEndian.Uint32(want[48:]))&(fuse.CAP_PASSTHROUGH>>32) != 0 {
		errs = append(errs, errors.New("passthrough is on in one and off in the other (--passthrough)"))
	} else {
		field("second set of capabilities", 48, 4)
	}
	field("depth of stacked file systems", 52, 4)
	return errors.Join(errs...)
}

// connectionOf returns the number of a device's connection, as Linux 6.15 and later tell.
func connectionOf(device int) (minor int, ok bool) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(device))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(info)) {
		if text, found := strings.CutPrefix(line, "fuse_connection:"); found {
			minor, err = strconv.Atoi(strings.TrimSpace(text))
			return minor, err == nil
		}
	}
	return 0, false
}

// find looks for the mount of a connection, asking nobody.
func (m *Mount) find(minor int) error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(info)) {
		if at, ok := parseMount(line); ok && at.minor == minor && at.path == m.point && at.isFUSE() {
			m.id, m.minor = at.id, at.minor
		}
	}
	if m.id == 0 {
		return errors.New("it was unmounted meanwhile")
	}
	all := findMounts(string(info), m.point, m.id)
	for _, at := range all[1:] {
		if !at.isFUSE() {
			break
		}
		m.buried = append(m.buried, at.minor)
	}
	return nil
}

// Device returns a descriptor of the mount's device, for whoever is to hold it when the daemon ends.
func (m *Mount) Device() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(m.fs.replyFD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// Adopted reports whether the mount is that of a predecessor.
func (m *Mount) Adopted() bool { return m.fs.adopted }

// hasEnded reports whether the connection of a FUSE device has ended, as by an unmount.
func hasEnded(device int) bool {
	polled := []unix.PollFd{{Fd: int32(device)}}
	_, err := unix.Poll(polled, 0)
	return err == nil && polled[0].Revents&unix.POLLERR != 0
}

// EndInherited ends the connection of a mount that is not taken over, and closes its device. nil: there is none.
func EndInherited(device *os.File) error {
	if device == nil {
		return nil
	}
	return endInherited(device, nil)
}

// endInherited is EndInherited where the predecessor's record, if there is one, says which connection it is and the kernel does not.
func endInherited(device *os.File, r *record) error {
	fd := int(device.Fd())
	if minor, ok := connectionOf(fd); ok {
		AbortIf(uint32(minor), func() bool { return !hasEnded(fd) })
	} else if r != nil { // which may be an older mount's
		AbortIf(uint32(r.Minor), func() bool {
			there, err := isMounted(uint32(r.Minor), r.Point)
			return there && err == nil && !hasEnded(fd)
		})
	}
	return device.Close()
}

// ConnectionOf returns the minor number of the device of a mount whose FUSE device this is, where the kernel tells.
func ConnectionOf(device *os.File) (minor uint32, ok bool) {
	n, ok := connectionOf(int(device.Fd()))
	return uint32(n), ok
}

package ringserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// What a successor of this daemon must know of registrations, in files of the state of restarts:
//
//	registrations/ID  a registration that was, or is about to be, acknowledged
//	rings/ID          the journal of a ring; there before its registration is, and removed after it
//	handles/NUMBER    an open handle of the directory of registrations
//	semaphores/UID    the names of a user's submit semaphores in the daemon's own /dev/shm
//	semaphores/UID... those in another one, and processes through which it is found again
//	run               how the names of all submit semaphores begin
const (
	registrationsDir = "registrations"
	journalsDir      = "rings"
	handlesDir       = "handles"
	semaphoresDir    = "semaphores"
	runFile          = "run"

	keptVersion = 1
)

// keptRegistration is a registration as it is kept.
type keptRegistration struct {
	Name, Target []byte // not a string: they may not be UTF-8
	UID, GID     uint32
	Groups       []int
	GroupsKnown  bool
	PID          uint32
	Owner        *keptProcess // nil: it cannot be seen
	Index        int
	Order        uint64
	Bytes        int64
	Object       keptObject
	Shm          *devShmID `json:",omitempty"` // nil: the daemon's own
}

// keptProcess identifies a process: its number may become another's.
type keptProcess struct {
	TGID  int
	Start uint64 // in clock ticks since the boot
}

// keptObject is an object in /dev/shm, which may have no name any more.
type keptObject struct {
	Dev, Ino   uint64
	BirthSec   int64
	BirthNsec  uint32
	HandleType int32
	Handle     []byte // by which the kernel finds it while somebody uses it; nil: none
}

func (k *keptRegistration) encode() ([]byte, error) { return json.Marshal(k) }

// decodeRegistration checks all that could be wrong with what is read.
func decodeRegistration(version uint32, text []byte) (*keptRegistration, wire.Link, error) {
	if version != keptVersion {
		return nil, wire.Link{}, fmt.Errorf("version %d of a registration, where this kv3fs knows %d: %w", version, keptVersion, restart.ErrDamaged)
	}
	k := &keptRegistration{}
	if err := strictly(text, k); err != nil {
		return nil, wire.Link{}, err
	}
	link, err := wire.ParseLink(string(k.Name))
	switch {
	case err != nil:
	case len(k.Name) > unix.NAME_MAX || bytes.ContainsAny(k.Name, "/\x00"):
		err = fmt.Errorf("name %q", k.Name)
	case !strings.HasPrefix(string(k.Target), "/dev/shm/") || bytes.ContainsRune(k.Target[len("/dev/shm/"):], '/'):
		err = fmt.Errorf("target %q", k.Target)
	case k.Index < 0 || k.Index >= wire.MaxIovs || k.Order == 0 || k.Bytes <= 0 || link.BlockBytes > k.Bytes:
		err = fmt.Errorf("index %d, order %d, %d bytes", k.Index, k.Order, k.Bytes)
	case len(k.Object.Handle) > mostHandleBytes:
		err = fmt.Errorf("a handle of %d bytes", len(k.Object.Handle))
	case k.Owner != nil && k.Owner.TGID <= 0:
		err = fmt.Errorf("process %d", k.Owner.TGID)
	}
	if err != nil {
		return nil, wire.Link{}, fmt.Errorf("a registration with %v: %w", err, restart.ErrDamaged)
	}
	return k, link, nil
}

const mostHandleBytes = 128 // MAX_HANDLE_SZ of the kernel

// strictly decodes JSON of which nothing is left over.
func strictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", err, restart.ErrDamaged)
	}
	if d.More() {
		return fmt.Errorf("more than one value: %w", restart.ErrDamaged)
	}
	return nil
}

// keptHandle is an open handle of the directory of registrations.
type keptHandle struct {
	UID   uint32
	Owner *keptProcess // nil: it cannot be seen
}

// legacy is what a successor will find. A nil one keeps nothing.
type legacy struct {
	dir *restart.Dir

	mu      sync.Mutex
	charged map[string]uint32 // the users of small files, by name
}

// keptFileBytes is what a small file takes in a tmpfs: a page, and what the kernel must know of it.
const keptFileBytes = 5 << 10

// errNoRoom says that a user's share of the state of restarts is used up.
var errNoRoom = fmt.Errorf("what this user has the daemon keep for the next one takes too much: %w", syscall.ENOMEM)

// charge takes room for a small file.
func (k *legacy) charge(name string, uid uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, has := k.charged[name]; has {
		return true
	}
	if !k.dir.Take(uid, keptFileBytes) {
		return false
	}
	k.charged[name] = uid
	return true
}

// write writes a small file of a user's.
func (k *legacy) write(name string, uid uint32, text []byte) error {
	if !k.charge(name, uid) {
		return errNoRoom
	}
	err := k.dir.Write(name, keptVersion, text)
	if err != nil {
		k.remove(name)
	}
	return err
}

// remove removes a small file. What stays, because root has changed the directory, is looked at by a successor.
func (k *legacy) remove(name string) {
	_ = k.dir.Remove(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	if uid, has := k.charged[name]; has {
		k.dir.Return(uid, keptFileBytes)
		delete(k.charged, name)
	}
}

func newLegacy(dir *restart.Dir) (*legacy, error) {
	if dir == nil {
		return nil, nil
	}
	for _, name := range []string{registrationsDir, journalsDir, handlesDir, semaphoresDir} {
		if err := dir.Make(name); err != nil {
			return nil, err
		}
	}
	return &legacy{dir: dir, charged: map[string]uint32{}}, nil
}

func registrationFile(id uint64) string { return registrationsDir + "/" + strconv.FormatUint(id, 10) }
func journalFile(id uint64) string      { return journalsDir + "/" + strconv.FormatUint(id, 10) }
func handleFile(n uint64) string        { return handlesDir + "/" + strconv.FormatUint(n, 10) }
func semaphoresFile(k semsKey) string {
	if k.shm != nil {
		return semaphoresElsewhereFile(k.uid, k.shm.id)
	}
	return semaphoresDir + "/" + strconv.FormatUint(uint64(k.uid), 10)
}
func semaphoresElsewhereFile(uid uint32, in devShmID) string {
	return fmt.Sprintf("%s/%d-%d-%d-%d", semaphoresDir, uid, in.Dev, in.Ino, in.UID)
}

// isElsewhere reports whether a name in semaphoresDir is that of semaphoresElsewhereFile.
func isElsewhere(name string) bool { return strings.Contains(name, "-") }

// keep writes a registration, before its client learns of it.
func (k *legacy) keep(e *entry, c cred.Caller) error {
	if k == nil {
		return nil
	}
	groups, known := c.Groups()
	r := keptRegistration{
		Name: []byte(e.Name), Target: []byte(e.Target), UID: e.UID, GID: e.GID, Groups: groups, GroupsKnown: known, PID: c.PID,
		Index: e.Index, Order: e.order, Bytes: e.bytes,
		Object: keptObject{Dev: e.object.dev, Ino: e.object.ino, BirthSec: e.object.birth.Sec, BirthNsec: e.object.birth.Nsec, HandleType: e.handleType, Handle: e.handle},
	}
	if e.owner != nil {
		r.Owner = &keptProcess{TGID: e.owner.tgid, Start: e.owner.start}
	}
	if e.shm != nil {
		r.Shm = &e.shm.id
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	return k.write(registrationFile(e.id), e.UID, text)
}

// forget removes a registration, and its journal.
func (k *legacy) forget(id uint64) {
	if k != nil {
		k.remove(registrationFile(id))
		_ = k.dir.Remove(journalFile(id))
	}
}

// keepHandle writes an open handle of the directory of registrations.
func (k *legacy) keepHandle(n uint64, uid uint32, w *owner) {
	if k == nil {
		return
	}
	h := keptHandle{UID: uid}
	if w != nil {
		h.Owner = &keptProcess{TGID: w.tgid, Start: w.start}
	}
	if text, err := h.encode(); err == nil {
		_ = k.write(handleFile(n), uid, text) // without it, a process's registrations end with it after a restart
	}
}

func (k *legacy) forgetHandle(n uint64) {
	if k != nil {
		k.remove(handleFile(n))
	}
}

// keepSemaphores writes the names of a user's submit semaphores, before a client learns of them.
func (k *legacy) keepSemaphores(of semsKey, sems [3]*submitSem) error {
	if k == nil {
		return nil
	}
	var names [3]string
	for i, sem := range sems {
		names[i] = sem.Name()
	}
	var kept any = names
	if of.shm != nil {
		kept = keptSemaphores{UID: of.uid, Shm: of.shm.id, Names: names[:], Readers: of.shm.keptReaders()}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	return k.write(semaphoresFile(of), of.uid, text)
}

func (k *legacy) forgetSemaphores(of semsKey) {
	if k != nil {
		k.remove(semaphoresFile(of))
	}
}

// keptSemaphores are those of a user in a /dev/shm that is not the daemon's own.
type keptSemaphores struct {
	UID     uint32
	Shm     devShmID
	Names   []string
	Readers []keptProcess // that have that /dev/shm
}

// decodeSemaphores returns the names of semaphores, all of which begin with prefix.
func decodeSemaphores(version uint32, text []byte, prefix string) (names [3]string, err error) {
	if version != keptVersion {
		return names, fmt.Errorf("version %d: %w", version, restart.ErrDamaged)
	}
	var all []string
	if err := strictly(text, &all); err != nil {
		return names, err
	}
	return checkSemaphores(all, prefix)
}

// decodeSemaphoresElsewhere is decodeSemaphores for those in a /dev/shm that is not the daemon's own.
func decodeSemaphoresElsewhere(version uint32, text []byte, prefix string) (k keptSemaphores, names [3]string, err error) {
	if version != keptVersion {
		return k, names, fmt.Errorf("version %d: %w", version, restart.ErrDamaged)
	}
	if err := strictly(text, &k); err != nil {
		return k, names, err
	}
	names, err = checkSemaphores(k.Names, prefix)
	return k, names, err
}

func checkSemaphores(all []string, prefix string) (names [3]string, err error) {
	if len(all) != len(names) {
		return names, fmt.Errorf("%d names: %w", len(all), restart.ErrDamaged)
	}
	for i, name := range all {
		id, ok := strings.CutPrefix(name, SemPrefix)
		if _, valid := wire.ParseUUID(id); !ok || !valid || !strings.HasPrefix(id, prefix) {
			return names, fmt.Errorf("name %q: %w", name, restart.ErrDamaged)
		}
		names[i] = name
	}
	return names, nil
}

// decodeRun returns how the names of submit semaphores begin.
func decodeRun(version uint32, text []byte) (string, error) {
	if version != keptVersion {
		return "", fmt.Errorf("version %d, where this kv3fs knows %d: %w", version, keptVersion, restart.ErrDamaged)
	}
	run := string(text)
	const rest = "01234567-0123-0123-0123-0123456789ab"
	if len(run) == len(newRunName()) {
		if _, valid := wire.ParseUUID(run + rest[len(run):]); valid {
			return run, nil
		}
	}
	return "", fmt.Errorf("%q is no beginning of semaphores' names: %w", text, restart.ErrDamaged)
}

// KeptSemaphores returns the beginning of the semaphores' names that a Server over dir would go on
// with, as Server.SemaphoreNames; "": none.
func KeptSemaphores(dir *restart.Dir) string {
	if dir == nil {
		return ""
	}
	version, text, err := dir.Read(runFile)
	if err != nil {
		return ""
	}
	run, err := decodeRun(version, text)
	if err != nil {
		return ""
	}
	return "sem." + SemPrefix + run
}

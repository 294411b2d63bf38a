package integrity

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func itoa(n int) string { return strconv.Itoa(n) }

func rngFor(t testing.TB) *rand.Rand {
	n := seed.New(t)
	return rand.New(rand.NewPCG(n, n))
}

// Whole ranges and the last, short one are verified, however the bytes came: in whole ranges, in pieces one after the
// other, and after the file was closed.
func TestVerifiesWholeRanges(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		for _, step := range []int64{5 << 20, 1 << 20, RangeBytes, 1000, 100_000, 3*RangeBytes + 7} {
			const size = 2<<20 + 12345
			content := random(rng, size)
			o := create(t, s, filepath.Join(dir, "f"+strconv.Itoa(int(step))))
			for off := int64(0); off < size; off += step {
				o.write(content[off:min(off+step, size)], off)
			}
			for _, again := range []bool{false, true} {
				b, bad, found, verified := o.read(0, size+100)
				mustBe(t, o.path, b, content)
				if found || verified != size {
					t.Errorf("%s: %d of %d bytes verified, damage %v %v", o.path, verified, int64(size), found, bad)
				}
				if _, _, _, verified := o.read(RangeBytes/2, 2*RangeBytes); verified != RangeBytes {
					t.Errorf("%s: %d bytes of one range and two halves verified", o.path, verified)
				}
				if !again {
					o.close()
					o = open(t, s, o.path, unix.O_RDONLY)
				}
			}
			o.close()
		}
		s.Close()
	}
}

// The sums outlive the daemon, and files that are gone leave none.
func TestOutlivesRestart(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		content := map[string][]byte{}
		for round := range 3 {
			s := openStore(t, dir)
			for path, want := range content {
				o := open(t, s, path, unix.O_RDONLY)
				b, _, found, verified := o.read(0, int64(len(want)))
				mustBe(t, path, b, want)
				if found || verified != int64(len(want)) {
					t.Errorf("%s: round %d: %d of %d bytes verified, damage %v", path, round, verified, len(want), found)
				}
				ino := o.sums.key
				o.close()
				if rng.IntN(2) == 0 {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
					s.Removed(ino)
					delete(content, path)
				}
			}
			for i := range 20 {
				o := create(t, s, filepath.Join(dir, "r"+itoa(round)+"-"+itoa(i)))
				content[o.path] = random(rng, 1+rng.Int64N(3*RangeBytes))
				o.write(content[o.path], 0)
				o.close()
			}
			s.save(true)
			if n := s.Counters().Files; n != len(content) {
				t.Errorf("%d files have sums, want %d", n, len(content))
			}
			s.Close()
		}
	}
}

// What changes without its times moving is found, and before anybody has it; what changes behind the daemon's back is
// unknown. A range that was read once as it should be is certainly damaged.
func TestFindsDamage(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, filepath.Join(dir, "f"))
		content := random(rng, 4*RangeBytes+999)
		o.write(content, 0)
		o.close()
		o = open(t, s, o.path, unix.O_RDONLY)
		writer, err := unix.Open(o.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, o.sums, writer, 2*RangeBytes+5)
		if _, bad, found, _ := o.read(0, int64(len(content))); s.fine && (!found || bad.Off != 2*RangeBytes || bad.Bytes != RangeBytes || bad.Certain) {
			t.Errorf("%s: damage before the first read: %v %v", dir, found, bad)
		}
		damage(t, o.sums, writer, 2*RangeBytes+5) // which mends it
		unix.Close(writer)
		for range 2 { // a failed seal is tried again after a while
			o.sums.triedSeal = time.Time{}
			if _, bad, found, _ := o.read(0, int64(len(content))); found {
				t.Fatalf("%s: mended, and still damaged: %v", dir, bad)
			}
		}
		writer, err = unix.Open(o.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, o.sums, writer, int64(len(content))-1)
		if _, bad, found, _ := o.read(0, int64(len(content))); s.fine && (!found || bad.Off != 4*RangeBytes || bad.Bytes != 999 || bad.Certain == s.memory) {
			t.Errorf("%s: damage of the last range: %v %v", dir, found, bad)
		}
		if _, err := unix.Pwrite(writer, []byte("behind the daemon's back"), 7); err != nil {
			t.Fatal(err)
		}
		if _, bad, found, _ := o.read(0, int64(len(content))); found {
			t.Errorf("%s: another's change was taken for damage: %v", dir, bad)
		}
		if _, _, _, verified := o.read(0, int64(len(content))); verified != 0 {
			t.Errorf("%s: %d bytes verified that nobody knows", dir, verified)
		}
		unix.Close(writer)
		o.close()
		s.Close()
	}
}

// In memory a mapping leaves no trace: what a client may have mapped is unknown, until it was read once nobody could
// change it any more.
func TestMappedInMemory(t *testing.T) {
	rng := rngFor(t)
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	o := create(t, s, filepath.Join(dir, "f"))
	content := random(rng, RangeBytes)
	client, err := unix.Open(o.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.sums.Unseen()
	for range 2 {
		o.write(content, 0)
		damage(t, o.sums, o.fd, 5)
		if _, bad, found, _ := o.read(0, RangeBytes); found {
			t.Errorf("what may be mapped was called damaged: %v", bad)
		}
	}
	o.write(content, 0)
	path := o.path
	o.close()
	unix.Close(client)
	o = open(t, s, path, unix.O_RDONLY)
	defer o.close()
	for range 2 {
		o.sums.triedSeal = time.Time{}
		if _, _, found, verified := o.read(0, RangeBytes); found || verified != RangeBytes {
			t.Errorf("%d bytes verified, damage %v", verified, found)
		}
	}
	writer, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(writer)
	damage(t, o.sums, writer, 5)
	if _, bad, found, _ := o.read(0, RangeBytes); !found || bad.Certain {
		t.Errorf("damage of what was read as it should be: %v %v", found, bad)
	}
}

// 10^5 bytes are damaged, one after the other, and none is served. In a short run, fewer.
func TestServesNoDamage(t *testing.T) {
	times := 500
	if os.Getenv("KV3FS_SOAK") != "" {
		times = 100_000
	}
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		if !s.fine {
			t.Logf("%s: times are coarse", dir)
			s.Close()
			continue
		}
		var all []*opened
		for i := range 20 {
			o := create(t, s, filepath.Join(dir, "f"+itoa(i)))
			o.write(random(rng, 1+rng.Int64N(int64(1+i%3)*RangeBytes)), 0)
			all = append(all, o)
		}
		for i := range times {
			o := all[rng.IntN(len(all))]
			size := fileSize(t, o.fd)
			at := rng.Int64N(size)
			damage(t, o.sums, o.fd, at)
			if _, bad, found, _ := o.read(0, size); !found || at < bad.Off || at >= bad.Off+bad.Bytes {
				t.Fatalf("%s: injection %d at %d of %d: served; %v %v", o.path, i, at, size, found, bad)
			}
			damage(t, o.sums, o.fd, at)
			if _, bad, found, _ := o.read(0, size); found {
				t.Fatalf("%s: it is mended: %v", o.path, bad)
			}
		}
		for _, o := range all {
			o.close()
		}
		s.Close()
	}
}

// Memory that a client takes away or changes harms only what that client has written.
func TestForeignMemory(t *testing.T) {
	rng := rngFor(t)
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	o := create(t, s, filepath.Join(dir, "f"))
	defer o.close()
	content := random(rng, 4*RangeBytes)
	o.write(content, 0)

	mem, err := unix.MemfdCreate("kv3fs-integrity-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mem)
	if err := unix.Ftruncate(mem, 2*RangeBytes); err != nil {
		t.Fatal(err)
	}
	gone, err := unix.Mmap(mem, 0, 4*RangeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)

	w := o.sums.BeginWrite(&Write{}, o.fd, 0, 4*RangeBytes)
	w.Hash(shm.OwnWindow(gone))
	w.End(false)
	if _, _, found, verified := o.read(0, 4*RangeBytes); found || verified != 0 {
		t.Errorf("a write that failed left sums: %d bytes verified, damage %v", verified, found)
	}
	o.write(content, 0)
	var r Read
	if !o.sums.BeginRead(&r, o.fd, 0, 4*RangeBytes) {
		t.Fatal("nothing to compare")
	}
	copy(gone[:2*RangeBytes], content)
	gone[RangeBytes+5]++ // the client changes what was read before it is compared
	if bad, found := r.Check(shm.OwnWindow(gone), 0); found {
		t.Errorf("a client's change of its memory was taken for damage: %v", bad)
	}
	r.End()
	mustBe(t, "what the client has changed", gone[:2*RangeBytes], content[:2*RangeBytes])

	// A client that changes its memory while it is written gets EIO for it, and nothing else happens.
	w = o.sums.BeginWrite(&Write{}, o.fd, 0, RangeBytes)
	w.Hash(shm.OwnWindow(content[:RangeBytes]))
	content[3]++
	if _, err := unix.Pwrite(o.fd, content[:RangeBytes], 0); err != nil {
		t.Fatal(err)
	}
	w.End(true)
	if _, bad, found, _ := o.read(0, RangeBytes); s.fine && (!found || bad.Certain) {
		t.Errorf("bytes that were changed while they were written: %v %v", found, bad)
	}
}

// Sums that are taken piece by piece are those of the whole, wherever pieces and the write begin.
func TestHashInPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	for _, at := range []int64{0, 1, RangeBytes - 1, RangeBytes, RangeBytes + 4096} {
		for _, piece := range []int64{4096, RangeBytes - 1, RangeBytes, RangeBytes + 1, 2 * RangeBytes} {
			o := create(t, s, filepath.Join(dir, fmt.Sprint(at, "-", piece)))
			content := random(rng, 3*RangeBytes+5)
			o.write(content[:at], 0)
			w := o.sums.BeginWrite(&Write{}, o.fd, at, int64(len(content))-at)
			for off := at; off < int64(len(content)); off += piece {
				w.Hash(shm.OwnWindow(content[off:min(off+piece, int64(len(content)))]))
			}
			if _, err := unix.Pwrite(o.fd, content[at:], at); err != nil {
				t.Fatal(err)
			}
			w.End(true)
			if _, bad, found, verified := o.read(0, int64(len(content))); found || verified != int64(len(content)) {
				t.Errorf("written at %d in pieces of %d: %d of %d bytes compared, damage %v %v", at, piece, verified, len(content), found, bad)
			}
			o.close()
		}
	}
	// Half of a write has no sums.
	o := create(t, s, filepath.Join(dir, "half"))
	defer o.close()
	content := random(rng, 2*RangeBytes)
	w := o.sums.BeginWrite(&Write{}, o.fd, 0, int64(len(content)))
	w.Hash(shm.OwnWindow(content[:RangeBytes]))
	if _, err := unix.Pwrite(o.fd, content, 0); err != nil {
		t.Fatal(err)
	}
	w.End(true)
	if _, _, found, verified := o.read(0, int64(len(content))); found || verified != 0 {
		t.Errorf("half of the sums: %d bytes compared, damage %v", verified, found)
	}
}

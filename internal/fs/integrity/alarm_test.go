package integrity

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Where times are of a second, as with ext4's small inodes, a change cannot be told from the one before.
func TestRefusesCoarseTimes(t *testing.T) {
	for size, refused := range map[string]bool{"128": true, "256": false} {
		dir := t.TempDir()
		image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		const imageBytes = 16 << 20
		if err := os.Truncate(image, imageBytes); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mkfs.ext4", "-q", "-I", size, image).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: mkfs.ext4: %v %s", err, out)
		}
		if out, err := exec.Command("mount", "-o", "loop", image, at).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: mount: %v %s", err, out)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		if why := Supported(at); (why != "") != refused {
			t.Errorf("inodes of %s bytes: %q", size, why)
		}
	}
}

// A daemon that is killed right after a client could map a file of tmpfs leaves no sums that a store could belie.
func TestKilledOnceMapped(t *testing.T) {
	rng := rngFor(t)
	dir := dirs(t)[0]
	s := openStore(t, dir)
	o := create(t, s, filepath.Join(dir, "f"))
	o.write(random(rng, RangeBytes), 0)
	o.close()
	s.save(true)
	o = open(t, s, o.path, unix.O_RDWR)
	o.sums.Unseen()
	mem, err := unix.Mmap(o.fd, 0, RangeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	mem[5] ^= mem[4096] | 1 // reads first: then the store leaves no trace
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
	unix.Close(o.fd)
	s.kill()
	s = openStore(t, dir)
	defer s.Close()
	o = open(t, s, o.path, unix.O_RDONLY)
	defer o.close()
	if _, bad, found, _ := o.read(0, RangeBytes); found {
		t.Errorf("a store through a mapping was taken for damage: %v", bad)
	}
}

// After a crash of the machine, the disk may have what others wrote and not the time at which they did.
func TestOtherBoot(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, filepath.Join(dir, "f"))
		o.write(random(rng, RangeBytes), 0)
		o.close()
		s.save(true)
		s.Close()
		fd, err := unix.Open(o.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir)
		s.boot++
		o = open(t, s, o.path, unix.O_RDONLY)
		damage(t, o.sums, fd, 5)
		if _, bad, found, _ := o.read(0, RangeBytes); found {
			t.Errorf("%s: sums of another boot: %v", dir, bad)
		}
		unix.Close(fd)
		o.close()
		s.Close()
	}
}

// A sparse file takes no more than a small part of what was written.
func TestSparseMemory(t *testing.T) {
	words := make(table)
	const written = 1000
	for i := range int64(written) {
		words.set(i*512, newWord(1, soft), always)
	}
	if took := len(words) * chunkRanges * 8; took > written*RangeBytes/400 {
		t.Errorf("%d bytes for %d", took, written*RangeBytes)
	}
}

// cp -p and rsync set the times of a file to those of another: the same, if times are whole seconds.
func TestSameTimesSet(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		for _, running := range []bool{true, false} {
			s := openStore(t, dir)
			o := create(t, s, filepath.Join(dir, strconv.FormatBool(running)))
			o.write(random(rng, RangeBytes), 0)
			times := []unix.Timespec{{Sec: 1 << 30}, {Sec: 1 << 30}}
			set := func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, o.path, times, 0) }
			if err := o.sums.Touch(o.fd, set); err != nil {
				t.Fatal(err)
			}
			o.close()
			o = open(t, s, o.path, unix.O_RDONLY)
			o.read(0, RangeBytes)
			if !running {
				o.close()
				s.Close()
			}
			if err := os.WriteFile(o.path, random(rng, RangeBytes), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := set(); err != nil {
				t.Fatal(err)
			}
			if !running {
				s = openStore(t, dir)
				o = open(t, s, o.path, unix.O_RDONLY)
			}
			if _, bad, found, _ := o.read(0, RangeBytes); found {
				t.Errorf("%s: another's file with the same times was taken for damage: %v", dir, bad)
			}
			o.close()
			s.Close()
		}
	}
}

// Renames and links of the daemon's own leave sums as good as they were.
func TestMoved(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, filepath.Join(dir, "part"))
		o.write(random(rng, RangeBytes), 0)
		before := o.sums.words.get(0)
		m := s.Moving(unix.AT_FDCWD, o.path)
		to := filepath.Join(dir, "whole")
		if err := os.Rename(o.path, to); err != nil {
			t.Fatal(err)
		}
		m.Done(unix.AT_FDCWD, to)
		o.read(0, RangeBytes)
		if after := o.sums.words.get(0); after.degree() < before.degree() {
			t.Errorf("%s: of degree %d, and once renamed %d", dir, before.degree(), after.degree())
		}
		o.close()
		s.Close()
	}
}

// While a daemon without checksums runs, a client may change a file in memory through a mapping, which leaves no trace: the
// next daemon that has them takes nothing for damage.
func TestMappedMeanwhile(t *testing.T) {
	rng := rngFor(t)
	dir := dirs(t)[0]
	s := openStore(t, dir)
	o := create(t, s, filepath.Join(dir, "f"))
	o.write(random(rng, RangeBytes), 0)
	o.close()
	s.Close()
	fd, err := unix.Open(o.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, RangeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	mem[5] ^= mem[4096] | 1 // reads first: then the store leaves no trace
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	s = openStore(t, dir)
	defer s.Close()
	o = open(t, s, o.path, unix.O_RDONLY)
	defer o.close()
	if _, bad, found, _ := o.read(0, RangeBytes); found {
		t.Errorf("a store through a mapping was taken for damage: %v", bad)
	}
}

package host

import (
	"bufio"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is a process that holds on to a file system.
type Holder struct {
	PID    int
	Name   string // of its program
	Files  int    // descriptors, and directories such as its working directory
	Mapped int    // mappings of files
}

// Holders are the processes that hold on to a file system, as far as they can be seen.
type Holders struct {
	Processes []Holder
	Files     map[uint64]string // what they hold: paths by inode number
	Complete  bool              // all visible processes were looked at
}

// Holders looks for processes other than this one that hold on to the file system with
// device number dev, for a limited time. It asks that file system nothing. It may find out
// nothing if a process has a file of another one open that hangs.
func (h Host) Holders(dev uint64, limit time.Duration) Holders {
	found := make(chan Holders, 1)
	go func() { found <- h.holders(dev, time.Now().Add(limit)) }()
	timeout := time.NewTimer(limit + limit/2)
	defer timeout.Stop()
	select {
	case all := <-found:
		return all
	case <-timeout.C:
		return Holders{}
	}
}

func (h Host) holders(dev uint64, end time.Time) Holders {
	all := Holders{Files: map[uint64]string{}}
	entries, err := os.ReadDir(h.Path("/proc"))
	if err != nil {
		return all
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if time.Now().After(end) {
			return all
		}
		p := Holder{PID: pid}
		dir := h.Path("/proc/" + e.Name())
		for _, link := range links(dir) {
			if ino, path, ok := holds(dir+"/"+link, dev); ok {
				p.Files++
				all.Files[ino] = path
			}
		}
		for ino, path := range mapped(dir+"/maps", dev) {
			p.Mapped++
			all.Files[ino] = path
		}
		if p.Files+p.Mapped > 0 {
			name, _ := h.read("/proc/" + e.Name() + "/comm")
			p.Name = strings.TrimSpace(name)
			all.Processes = append(all.Processes, p)
		}
	}
	all.Complete = true
	return all
}

// links returns the names of the links by which a process holds files.
func links(dir string) []string {
	all := []string{"cwd", "root"}
	fds, _ := os.ReadDir(dir + "/fd")
	for _, fd := range fds {
		all = append(all, "fd/"+fd.Name())
	}
	return all
}

// holds reports whether a link of a process leads to the file system, and to what.
func holds(link string, dev uint64) (ino uint64, path string, ok bool) {
	path, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(path, "/") {
		return 0, "", false // a socket, for instance
	}
	var st unix.Statx_t
	const asKnown = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	if unix.Statx(unix.AT_FDCWD, link, asKnown, unix.STATX_INO, &st) != nil {
		return 0, "", false
	}
	return st.Ino, path, unix.Mkdev(st.Dev_major, st.Dev_minor) == dev
}

// mapped yields the inodes and paths of the file system's mappings in a process.
func mapped(maps string, dev uint64) iter.Seq2[uint64, string] {
	return func(yield func(uint64, string) bool) {
		f, err := os.Open(maps)
		if err != nil {
			return
		}
		defer f.Close()
		want := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 6 || fields[3] != want {
				continue
			}
			ino, _ := strconv.ParseUint(fields[4], 10, 64)
			if !yield(ino, strings.Join(fields[5:], " ")) {
				return
			}
		}
	}
}

// String names the processes, at most five.
func (h Holders) String() string {
	const most = 5
	var names []string
	for i, p := range h.Processes {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(h.Processes)-most))
			break
		}
		names = append(names, fmt.Sprintf("%s (pid %d: %d open, %d mapped)", p.Name, p.PID, p.Files, p.Mapped))
	}
	if !h.Complete {
		names = append(names, "others, as not all could be looked at in time")
	}
	return strings.Join(names, ", ")
}

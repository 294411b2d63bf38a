package workload

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

// Where a replay keeps its blocks, below <mount>/<dir>:
//
//	1f/000000000000031f-r0-65536    block 0x31f, slice of rank 0, of 64 KiB
//	tmp/<process>/                  what is being written; gone when it is named
//
// The first directory is the last byte of the id, because ids of traces count up. The name
// has the size, so that replays with different block sizes can share a directory without
// mistaking each other's files for damaged ones.

// blockPath returns the path of one rank's slice of a block, relative to the replay's
// directory.
func blockPath(id uint64, rank int, blockBytes int64) string {
	b := make([]byte, 0, 48)
	const hex = "0123456789abcdef"
	b = append(b, hex[id>>4&15], hex[id&15], '/')
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, hex[id>>shift&15])
	}
	b = append(b, "-r"...)
	b = strconv.AppendInt(b, int64(rank), 10)
	b = append(b, '-')
	return string(strconv.AppendInt(b, blockBytes, 10))
}

// contentOf returns the content of one rank's slice of a block.
func contentOf(id uint64, rank int) Pattern { return PatternOf(id, uint64(rank)) }

const tempDir = kv3fs.ReplayTempDir

// process identifies a process, so that another one can check later whether it still runs:
// boot, pid namespace, pid, start time.
type process struct {
	boot, namespace, pid, started string
}

func thisProcess() (process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, err
	}
	ns, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return process{}, err
	}
	pid := strconv.Itoa(os.Getpid())
	started, err := startTime(pid)
	if err != nil {
		return process{}, err
	}
	return process{
		boot:      strings.TrimSpace(string(boot))[:8],
		namespace: strings.Trim(strings.TrimPrefix(ns, "pid:"), "[]"),
		pid:       pid,
		started:   started,
	}, nil
}

func (p process) String() string {
	return strings.Join([]string{p.boot, p.namespace, p.pid, p.started}, "-")
}

func parseProcess(s string) (process, bool) {
	f := strings.Split(s, "-")
	if len(f) != 4 {
		return process{}, false
	}
	return process{f[0], f[1], f[2], f[3]}, true
}

// startTime returns field 22 of /proc/<pid>/stat. The second field may contain anything but
// ends with the last parenthesis.
func startTime(pid string) (string, error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", err
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 20 {
		return "", fmt.Errorf("/proc/%s/stat has %d fields after the name", pid, len(f))
	}
	return f[19], nil
}

// unknownKeep is how long the temporary files of a process that cannot be looked up are
// kept: on a shared file system it may run on another host.
const unknownKeep = 24 * time.Hour

// dead reports whether the process called name has ended, as seen by self at now; touched
// is when its directory was last changed.
func dead(name string, self process, touched, now time.Time) bool {
	p, ok := parseProcess(name)
	if !ok {
		return false // not the name of a replay
	}
	if p.boot != self.boot || p.namespace != self.namespace {
		return now.Sub(touched) > unknownKeep
	}
	started, err := startTime(p.pid)
	if err != nil {
		return os.IsNotExist(err)
	}
	return started != p.started
}

// removeDeadTemps removes what killed replays have left in dir and returns the number of
// files.
func removeDeadTemps(dir string, self process) (removed int, err error) {
	temps := filepath.Join(dir, tempDir)
	entries, err := os.ReadDir(temps)
	if err != nil {
		if os.IsNotExist(err) {
			err = nil
		}
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.IsDir() || !dead(e.Name(), self, info.ModTime(), time.Now()) {
			continue
		}
		path := filepath.Join(temps, e.Name())
		_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				removed++
			}
			return nil
		})
		if err := os.RemoveAll(path); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

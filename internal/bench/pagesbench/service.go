package pagesbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

const (
	startLimit = 30 * time.Second
	stopLimit  = 30 * time.Second
)

// The contenders.
const (
	nameOurs      = "kv3fs"
	nameReference = "reference"
)

// service is a contender that runs.
type service struct {
	name    string
	to      target
	command []string
	dir     string         // of its own; removed at the end
	child   *measure.Child // nil for a service that the benchmark did not start
}

// startOurs starts a page service over an empty directory. It keeps no page free, so that it holds as many keys as
// the reference does.
func startOurs(ctx context.Context, binary, scratch string) (*service, error) {
	return start(ctx, nameOurs, scratch, func(dir, address, _ string) ([]string, error) {
		return []string{binary, "pages", "serve", "--data", filepath.Join(dir, "data"), "--listen", address, "--free", "0"}, nil
	})
}

func startReference(ctx context.Context, python, scratch string) (*service, error) {
	return start(ctx, nameReference, scratch, func(dir, _, port string) ([]string, error) {
		return referenceCommand(python, dir, port)
	})
}

func start(ctx context.Context, name, scratch string, command func(dir, address, port string) ([]string, error)) (*service, error) {
	dir, err := os.MkdirTemp(scratch, "kv3fs-bench-pages-")
	if err != nil {
		return nil, fmt.Errorf("bench: scratch directory: %w", err)
	}
	s := &service{name: name, dir: dir}
	if s.to.address, err = freeAddress(); err == nil {
		_, port, _ := net.SplitHostPort(s.to.address)
		s.command, err = command(dir, s.to.address, port)
	}
	if err == nil {
		_, err = s.launch(ctx, func(*conn) error { return nil })
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// freeAddress returns an unused address of loopback.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// launch starts the process and returns how long it took until a client that connected
// got the answer that it wants.
func (s *service) launch(ctx context.Context, content func(*conn) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	began := time.Now()
	var err error
	if s.child, err = measure.StartChild(s.command[0], s.command[1:]...); err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for {
		c, err := dial(s.to.address, time.Second)
		if err == nil {
			err = errors.Join(c.until(time.Now().Add(startLimit)), content(c), c.close())
			took := time.Since(began)
			if err == nil {
				return took, nil
			}
		}
		select {
		case <-s.child.Ended():
			return 0, fmt.Errorf("bench: %s ended before it answered: %w", s.name, s.child.ExitError())
		case <-ctx.Done():
			return 0, fmt.Errorf("bench: %s does not answer after %v: %w; its log:\n%s", s.name, time.Since(began), err, s.child.LastOutput())
		case <-time.After(time.Millisecond): // a port that opens raises no event
		}
	}
}

// stop stops the process and removes its directory.
func (s *service) stop() (err error) {
	if s.child != nil {
		err = s.child.Stop(stopLimit)
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// residentBytes returns the resident memory of the process.
func (s *service) residentBytes() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.child.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("no VmRSS")
}

// clockTicksPerSecond is USER_HZ, the same on every Linux that Go knows.
const clockTicksPerSecond = 100

// cpuTime returns the processor time of the process; 0 if the benchmark did not start it.
func (s *service) cpuTime() (time.Duration, error) {
	if s.child == nil {
		return 0, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.child.PID()))
	if err != nil {
		return 0, err
	}
	// The name of the command is in brackets, and may contain anything.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat of %s: %q", s.name, stat)
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, err
	}
	return time.Duration(user+system) * time.Second / clockTicksPerSecond, nil
}

// clientsCPUTime returns the processor time of this process, nearly all of which is that
// of its clients.
func clientsCPUTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

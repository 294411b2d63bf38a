package hogs

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// honest is what an honest client is told.
type honest struct {
	Mount string
	Dir   string // on the mount, the client's own
	Pages string // base URL of the page service
	Tool  string // path of usrbio_tool
	Limit time.Duration
}

// A session is a client that is connected. call is one unit of its work; n counts the calls.
type session interface {
	call(n uint64) error
	close() error
}

// paceTime is the pause between calls: honest clients do not fill a machine of two
// processors on their own.
const paceTime = 3 * time.Millisecond

// client returns the program of an honest client: it calls until it is stopped, and reports
// every fifth of a second.
func client(connect func(honest) (session, error)) hostile.Program {
	return func(s *hostile.Self) error {
		var a honest
		if err := s.Args(&a); err != nil {
			return err
		}
		c, err := connect(a)
		if err != nil {
			return err
		}
		var f figures
		reported := time.Now()
		for n := uint64(1); s.Running(); n++ {
			began := time.Now()
			err := c.call(n)
			f.add(time.Since(began), err)
			if time.Since(reported) > 200*time.Millisecond {
				if err := s.Report(f); err != nil {
					return err
				}
				f, reported = figures{}, time.Now()
			}
			time.Sleep(paceTime/2 + rand.N(paceTime))
		}
		return errors.Join(s.Report(f), c.close())
	}
}

// honestPrograms are the honest clients by name.
func honestPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{
		"Go ring, read 8 x 128 KiB":       client(connectReader),
		"Go rings, write and read 64 KiB": client(connectWriter),
		"Go, connect, read, leave":        client(connectNewcomer),
		"C rings, write and read 64 KiB":  client(connectTool),
		"mount, write and read 64 KiB":    client(connectFiles),
		"pages, reserve and find 8 keys":  client(connectPages),
	}
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// Who waits for findings gets none that are old. A look that fails leaves those before it, is told, and is soon repeated.
func TestFindingsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work sync.WaitGroup
		defer work.Wait()
		looks, failure := 0, error(nil)
		f := &findings{ctx: t.Context(), work: &work, look: func(context.Context) ([]api.Finding, error) {
			looks++
			time.Sleep(time.Second)
			if failure != nil {
				return nil, failure
			}
			return []api.Finding{{ID: fmt.Sprint(looks), Status: api.FindingWarning}}, nil
		}}
		expect := func(when, id, failed string) {
			t.Helper()
			is := f.get(t.Context())
			if len(is.Findings) != 1 || is.Findings[0].ID != id || is.Error != failed {
				t.Errorf("%s: %+v", when, is)
			}
			if s := f.summary(); s == nil || s.Warnings != 1 || len(s.Top) != 1 || s.Error != failed {
				t.Errorf("%s: %+v", when, s)
			}
		}
		expect("first", "1", "")
		time.Sleep(findingsAge)
		expect("soon after", "1", "")
		time.Sleep(time.Second)
		expect("when they are old", "2", "")
		failure = errors.New("the disk hangs")
		time.Sleep(findingsAge + time.Second)
		expect("could not look", "2", "the disk hangs")
		failure = nil
		time.Sleep(failureAge + time.Second)
		expect("could look again", "4", "")
	})
}

// A daemon whose doctor has never been able to look is not healthy.
func TestFindingsNeverLooked(t *testing.T) {
	_, c := shownDaemon(t, func(c *Config) {
		c.Doctor = func(context.Context) ([]api.Finding, error) { return nil, errors.New("the disk hangs") }
	})
	await(t, "it has tried to look", func() bool {
		var is api.Findings
		return c.Show(t.Context(), "findings?wait=5", &is) == nil && is.Error != ""
	})
	var status api.Status
	if err := c.Show(t.Context(), "status", &status); err != nil || status.Health != api.Warnings || status.Findings == nil || status.Findings.Error != "the disk hangs" {
		t.Errorf("%+v, %v", status, err)
	}
}

// While the file system of the data directory does not answer, the daemon says so, and what else it knows.
func TestStatusWhileSpaceHangs(t *testing.T) {
	d := faultdir.New(t)
	_, c := shownDaemon(t, func(c *Config) {
		c.DataDir, c.Pages.Listen, c.Keeping = d.Path, nil, Keeping{Capacity: keeper.Limit{Bytes: 1 << 30}}
	})
	hung := d.Hang(func(c faultdir.Call) bool { return c.Op == "statfs" })
	defer d.Heal()
	<-hung // somebody has asked
	var status api.Status
	await(t, "the space check fails", func() bool {
		status = api.Status{}
		if err := c.Show(t.Context(), "status", &status); err != nil {
			t.Fatal(err)
		}
		return status.Space == nil
	})
	if status.Health != api.Unhealthy || status.Keeper == nil || status.Keeper.LimitBytes != 1<<30 || status.Limits.Registrations == 0 {
		t.Errorf("%+v", status)
	}
}

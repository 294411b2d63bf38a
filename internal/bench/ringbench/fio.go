package ringbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// fioContender is fio with io_uring on the data directory: what the disk or the page
// cache gives to a program without kv3fs in between.
type fioContender struct {
	c      testCase
	files  *files
	direct bool
}

func (f *fioContender) name() string { return nameFio }
func (f *fioContender) close() error { return nil }

func (f *fioContender) args(d time.Duration) []string {
	yes := map[bool]string{false: "0", true: "1"}
	args := []string{
		"--ioengine=io_uring", "--rw=rand" + f.c.op(),
		"--bs=" + strconv.FormatInt(f.c.sizeBytes, 10),
		"--size=" + strconv.FormatInt(f.files.sizeBytes, 10),
		"--iodepth=" + strconv.Itoa(f.c.depth),
		"--direct=" + yes[f.direct],
		"--invalidate=0", // the page cache is warm for the others, too
		"--norandommap", "--randrepeat=0", "--thread",
		"--time_based", "--runtime=" + strconv.FormatInt(d.Milliseconds(), 10) + "ms",
		"--group_reporting", "--output-format=json",
	}
	for ring := range f.c.rings {
		args = append(args, fmt.Sprintf("--name=ring-%d", ring), "--filename="+f.files.path(f.files.data, ring, f.c.write))
	}
	return args
}

func (f *fioContender) run(ctx context.Context, d time.Duration, _ int) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, d+waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "fio", f.args(d)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		text := bytes.TrimSpace(append(stderr.Bytes(), stdout.Bytes()...))
		return sample{}, fmt.Errorf("fio: %w: %s", err, text[:min(len(text), 300)])
	}
	return parseFio(stdout.Bytes(), f.c.write)
}

// parseFio reads the result from fio's JSON, before which fio may print notes. With
// grouped jobs there is one entry.
func parseFio(out []byte, write bool) (sample, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return sample{}, errors.New("fio: no JSON in its output")
	}
	type side struct {
		TotalIOs int64   `json:"total_ios"`
		IOPS     float64 `json:"iops"`
	}
	var report struct {
		Jobs []struct {
			Error       int
			Read, Write side
		}
	}
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&report); err != nil {
		return sample{}, fmt.Errorf("fio: its JSON: %w", err)
	}
	if len(report.Jobs) != 1 {
		return sample{}, fmt.Errorf("fio: %d jobs in its report instead of one group", len(report.Jobs))
	}
	job := report.Jobs[0]
	s := job.Read
	if write {
		s = job.Write
	}
	if job.Error != 0 || s.TotalIOs == 0 || s.IOPS <= 0 {
		return sample{}, fmt.Errorf("fio: error %d after %d requests", job.Error, s.TotalIOs)
	}
	return sample{s.TotalIOs, time.Duration(float64(s.TotalIOs) / s.IOPS * float64(time.Second))}, nil
}

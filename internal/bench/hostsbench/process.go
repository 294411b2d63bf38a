package hostsbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
)

// on returns a command that runs on a host, and ends when ctx does.
func (h Host) on(ctx context.Context, binary string, args ...string) *exec.Cmd {
	words := slices.Concat(h.Command, []string{binary}, args)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// engine runs the queries of all groups on a host. node is 0 on the one that fills the store;
// others have queries of their own.
func (b *bench) engine(ctx context.Context, host int, order string, seed, node uint64) (*enginebench.Report, error) {
	h := b.o.Hosts[host]
	dir, err := os.MkdirTemp("", "kv3fs-bench-hosts-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "report.json")
	args := []string{"bench", "engine", enginebench.SharedPrefix, "--no-progress", "--no-cold", "--order", order,
		"--seed", strconv.FormatUint(seed, 10), "--store", b.o.Store, "--near", filepath.Join(h.Near, b.name, order)}
	if b.o.last() == "Ds3fs" {
		args = append(args, "--mount", h.Far)
	} else {
		args = append(args, "--dir", filepath.Join(h.Far, b.name, order))
	}
	if node == 0 {
		args = append(args, "--hand-over", file)
	} else {
		args = append(args, "--cold-report", file, "--node", strconv.FormatUint(node, 10))
	}
	if b.rep.Scale > 0 && !slices.Contains(b.o.Engine, "--scale") { // that of the first
		args = append(args, "--scale", strconv.FormatInt(b.rep.Scale, 10))
	}
	cmd := h.on(ctx, b.o.Binary, append(args, b.o.Engine...)...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("bench: host %d: %w; it said:\n%s", host+1, err, tail(out))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("bench: host %d left no report where this process can read it: %w", host+1, err)
	}
	report := &enginebench.Report{}
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("bench: host %d: %w", host+1, err)
	}
	return report, nil
}

// tail returns the end of what a process has said.
func tail(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[max(0, len(out)-2000):]
}

// reading is a reader on a host that is ready to read.
type reading struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	said bytes.Buffer
	over bool // it has ended, and its error was returned
}

// startReader starts a reader and waits until it is ready.
func (b *bench) startReader(ctx context.Context, host int) (*reading, error) {
	h := b.o.Hosts[host]
	o := ReaderOptions{
		Chain: b.readerChain(), Near: filepath.Join(h.Near, b.name, "reads"), Far: filepath.Join(h.Far, b.name, "reads"),
		Bytes: b.o.ReadBytes, Time: b.o.ReadTime, DirectIO: b.o.DirectIO, Host: host,
	}
	if b.o.last() == "Ds3fs" {
		o.Far = h.Far
	}
	order, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	r := &reading{cmd: h.on(ctx, b.o.Binary, "bench", "hosts", "--reader", string(order))}
	r.cmd.Stderr = &r.said
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: host %d: %w", host+1, err)
	}
	r.out = bufio.NewScanner(out)
	if !r.out.Scan() || r.out.Text() != readerReady {
		return nil, r.failed(host)
	}
	return r, nil
}

// result lets the reader go on, and returns what it has read.
func (r *reading) result(host int) (ReaderResult, error) {
	var result ReaderResult
	if !r.out.Scan() || json.Unmarshal(r.out.Bytes(), &result) != nil {
		return result, r.failed(host)
	}
	return result, nil
}

// failed ends the reader and says why.
func (r *reading) failed(host int) error {
	_ = r.in.Close()
	err := r.cmd.Wait()
	r.over = true
	return fmt.Errorf("bench: the reader on host %d: %w; it said:\n%s%s", host+1, err, r.out.Text(), tail(r.said.Bytes()))
}

// end ends the reader.
func (r *reading) end() error {
	if r.over {
		return nil
	}
	_ = r.in.Close()
	return r.cmd.Wait()
}

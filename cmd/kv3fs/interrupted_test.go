package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A command that a signal interrupts prints the JSON of what was complete, and says so,
// also where no path is UTF-8.
func TestInterruptedJSON(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	s := serve(t, bin, filepath.Join(t.TempDir(), "data\xff"))
	scratch := func(t *testing.T) (dir string, used func(*exec.Cmd) bool) {
		dir = filepath.Join(t.TempDir(), "scratch\xff")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir, func(*exec.Cmd) bool { files, _ := os.ReadDir(dir); return len(files) > 0 }
	}
	hasChild := func(cmd *exec.Cmd) bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		for _, thread := range threads {
			more, _ := os.ReadFile(thread)
			children = append(children, more...)
		}
		return len(children) > 0
	}
	for _, c := range []struct {
		command string
		args    []string
		input   string // then its input stays open
	}{
		{"replay", []string{"--trace", "-", "--mount", s.mount, "--block-bytes", "4k"}, `{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[77]}` + "\n"},
		{"bench ring", []string{"--sizes", "4k", "--run-time", "1m"}, ""},
		{"bench store", []string{"--blocks", "4", "--block-bytes", "64KiB", "--run-time", "1m"}, ""},
		{"bench engine", []string{"ucm-table", "--prompt-tokens", "4000", "--runs", "1000", "--models", "QwQ-32B"}, ""},
		{"bench policy", []string{"--trace", "-"}, `{"timestamp":0,"hash_ids":[77]}` + "\n"},
		{"bench pages", []string{"--no-reference", "--pages", "1024", "--clients", "2", "--batch", "16", "--run-time", "1m"}, ""},
		{"doctor", []string{"--mount", s.mount}, ""},
		{"pages stat", nil, ""},
		{"pages ls", nil, ""},
		{"pages evict", []string{"--keys", "1"}, ""},
		{"pages clear", []string{"--yes"}, ""},
		{"pages forget-rank", []string{"--rank", "1", "--yes"}, ""},
	} {
		t.Run(c.command, func(t *testing.T) {
			began := hasChild
			var input io.WriteCloser
			args := append(strings.Fields(c.command), "--json")
			switch {
			case c.command == "replay":
				args = append(args, "--no-progress")
				began = func(*exec.Cmd) bool {
					files, _ := filepath.Glob(filepath.Join(s.data, "kv3fs-replay", "4d", "*"))
					return len(files) > 0
				}
			case strings.HasPrefix(c.command, "pages"): // of a service that does not answer
				service, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer service.Close()
				asked := make(chan struct{})
				go func() {
					if conn, err := service.Accept(); err == nil {
						defer conn.Close()
						close(asked)
						_, _ = io.Copy(io.Discard, conn)
					}
				}()
				args = append(args, "--url", "http://"+service.Addr().String())
				began = func(*exec.Cmd) bool {
					select {
					case <-asked:
						return true
					default:
						return false
					}
				}
			case c.command == "bench policy":
				began = func(*exec.Cmd) bool { // its input was read
					left, err := unix.IoctlGetInt(int(input.(*os.File).Fd()), unix.TIOCINQ)
					return err == nil && left == 0
				}
			case strings.HasPrefix(c.command, "bench"):
				var dir string
				dir, began = scratch(t)
				args = append(args, "--no-progress", "--scratch", dir)
			}
			cmd := exec.Command(bin, append(args, c.args...)...)
			var err error
			if input, err = cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			defer input.Close()
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := false
			defer func() {
				if !ended {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}
			}()
			if _, err := io.WriteString(input, c.input); err != nil {
				t.Fatal(err)
			}
			await(t, "the beginning", func() bool { return began(cmd) })
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its status is looked at
			ended = true
			if status := cmd.ProcessState.ExitCode(); status != exitInterrupted {
				t.Errorf("exit status %d, want %d: %s", status, exitInterrupted, errs.String())
			}
			checkJSON(t, c.command, out.String())
			var report struct{ Interrupted bool }
			if err := json.Unmarshal(out.Bytes(), &report); err != nil || !report.Interrupted {
				t.Errorf("interrupted: %v, %v\n%s%s", report.Interrupted, err, out.String(), errs.String())
			}
		})
	}
}

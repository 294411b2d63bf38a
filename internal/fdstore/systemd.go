package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// systemdTime bounds how long systemd may take to say what it does.
const systemdTime = 5 * time.Second

// systemdSockets begins the paths of systemd's sockets.
const systemdSockets = "/run/systemd/"

// Job is what systemd does with the service that this process is.
type Job string

// The jobs that matter here. NoJob: systemd did not start this process, or nothing is under way.
const (
	NoJob      Job = ""
	StopJob    Job = "stop"
	RestartJob Job = "restart"
)

// JobOf asks systemd why it sends SIGTERM: the signal is the same for a stop and a restart.
func JobOf(ctx context.Context) (Job, error) {
	if !strings.HasPrefix(os.Getenv(envManager), systemdSockets) {
		return NoJob, nil
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return NoJob, err
	}
	unit := unitIn(string(text))
	if unit == "" {
		return NoJob, errors.New("/proc/self/cgroup names no service")
	}
	ctx, cancel := context.WithTimeout(ctx, systemdTime)
	defer cancel()
	var out []byte
	for {
		out, err = exec.CommandContext(ctx, "systemctl", "list-jobs", "--no-legend", "--plain", "--full").Output()
		// The SIGTERM that we have got goes to every process of the service, perhaps to this one, too.
		var end *exec.ExitError
		if ctx.Err() == nil && errors.As(err, &end) && end.ExitCode() < 0 {
			continue
		}
		break
	}
	if err != nil {
		return NoJob, fmt.Errorf("ask systemd for the job of %s: %w", unit, err)
	}
	return jobIn(string(out), unit), nil
}

// keeper returns the socket of a manager that keeps descriptors; "": there is none. Other managers have a socket, too, but take only notes
// of what starts and stops: podman, and systemd for a unit without FileDescriptorStoreMax=.
func keeper() string {
	manager := os.Getenv(envManager)
	if room := os.Getenv(envRoom); room != "" {
		if n, err := strconv.Atoi(room); err != nil || n <= 0 {
			return ""
		}
		return manager
	}
	if !strings.HasPrefix(manager, systemdSockets) || !hasStore() {
		return ""
	}
	return manager
}

// hasStore asks a systemd that does not say it by itself, before version 254, whether it keeps descriptors of the service that this process is.
func hasStore() bool {
	text, err := os.ReadFile("/proc/self/cgroup")
	unit := unitIn(string(text))
	if err != nil || unit == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), systemdTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=FileDescriptorStoreMax", unit).Output()
	_, most, _ := strings.Cut(strings.TrimSpace(string(out)), "=")
	n, bad := strconv.Atoi(most)
	return err == nil && bad == nil && n > 0
}

// unitIn returns the service that a /proc/PID/cgroup names.
func unitIn(text string) string {
	for line := range strings.Lines(text) {
		parts := strings.Split(strings.TrimSpace(line), "/")
		for i := len(parts) - 1; i >= 0; i-- {
			if strings.HasSuffix(parts[i], ".service") {
				return parts[i]
			}
		}
	}
	return ""
}

// jobIn returns the job of a unit in what "systemctl list-jobs" prints: number, unit, type and state.
func jobIn(text, unit string) Job {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == unit {
			return Job(f[2])
		}
	}
	return NoJob
}

package pagehistory

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// machines are three of them, each in a network namespace of its own, joined by a bridge: an
// etcd member, and a page service over one directory and one etcd for all.
type machines struct {
	t    *testing.T
	etcd *etcd.Members
	all  []*machine
}

type machine struct {
	index   int
	address netip.Addr
	holder  *exec.Cmd // has the network namespace
	*service
}

// Ports of a machine.
const (
	pagesPort = 18000
	peersPort = 18001
	etcdPort  = 2379
)

// inNamespace runs a test in a process of its own, whose network nobody else sees, and
// reports whether this is that process.
func inNamespace(t *testing.T) bool {
	t.Helper()
	daemontest.NeedRoot(t)
	for _, program := range []string{"etcd", "ip", "nft", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			daemontest.NotTested(t, "scripts/need test installs what is missing: "+err.Error())
		}
	}
	const inside = "KV3FS_PAGEHISTORY_INSIDE"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	args := append([]string{"-test.run=^" + t.Name() + "$", "-test.v"}, forwarded()...)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.CombinedOutput()
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		t.Log(lines.Text())
	}
	if err != nil {
		t.Fatalf("in a network namespace of its own: %v", err)
	}
	return false
}

// forwarded returns the flags of this run that the process inside needs as well.
func forwarded() (flags []string) {
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.timeout=") || strings.HasPrefix(arg, "-test.short") {
			flags = append(flags, arg)
		}
	}
	return flags
}

// startMachines starts machines whose services lease as the load says.
func startMachines(t *testing.T, l *Load) *machines {
	t.Helper()
	const n = 3
	m := &machines{t: t}
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "br0", "type", "bridge")
	t.Cleanup(func() { run(t, "ip", "link", "del", "br0") })
	run(t, "ip", "addr", "add", "10.77.0.100/24", "dev", "br0")
	run(t, "ip", "link", "set", "br0", "up")
	var addresses []netip.Addr
	for i := range n {
		x := &machine{index: i, address: netip.AddrFrom4([4]byte{10, 77, 0, byte(1 + i)})}
		x.hold(t)
		m.all = append(m.all, x)
		addresses = append(addresses, x.address)
	}
	m.etcd = etcd.Start(t, etcd.Options{Addresses: addresses, Enter: func(i int) []string { return m.all[i].enter() }, QuotaBytes: 64 << 20})
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a secret of machines\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	pages := pageFile(t, l.NumPages).Name()
	for i, x := range m.all {
		name := fmt.Sprint("machine", i)
		// On a local disk, a host takes the only state directory that there is for its own.
		home := filepath.Join(dir, "data/.kv3fs/hosts", name)
		if err := os.MkdirAll(home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(home+"/host.json", fmt.Appendf(nil, `{"identity":%q,"named":true,"host":"h"}`, name), 0o600); err != nil {
			t.Fatal(err)
		}
		listen, peers := x.at(pagesPort), x.at(peersPort)
		x.service = &service{address: listen, command: append(x.enter(), binary, "pages", "serve",
			"--data", filepath.Join(dir, "data"), "--identity", name, "--listen", listen,
			"--store", "etcd://"+strings.Join(m.etcd.Endpoints(), ",")+"/history",
			"--peer-listen", peers, "--peer-token-file", token,
			"--lease", l.Lease.String(), "--reserve", l.Reserve.String(), "--hold", "100ms", "--quarantine", "200ms")}
		if err := x.service.start(); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(pages, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		l.Hosts = append(l.Hosts, Host{URL: "http://" + listen, File: f})
	}
	t.Cleanup(m.stop)
	return m
}

// hold makes the network namespace of a machine, and its cable to the bridge.
func (x *machine) hold(t *testing.T) {
	t.Helper()
	x.holder = exec.Command("sleep", "infinity")
	x.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := x.holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = x.holder.Process.Kill()
		_ = x.holder.Wait() // it was killed
	})
	cable := fmt.Sprint("cable", x.index)
	run(t, "ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(x.holder.Process.Pid))
	t.Cleanup(func() { run(t, "ip", "link", "del", cable) })
	run(t, "ip", "link", "set", cable, "master", "br0", "up")
	for _, args := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "addr", "add", x.address.String() + "/24", "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
	} {
		run(t, append(x.enter(), args...)...)
	}
}

// enter returns what runs a command on the machine.
func (x *machine) enter() []string {
	return []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", x.holder.Process.Pid), "--"}
}

func (x *machine) at(port uint16) string { return netip.AddrPortFrom(x.address, port).String() }

// filter makes the machine drop packets: each rule is nftables' match of incoming ("in") or
// outgoing ("out") ones. Those of the clients of the test always pass.
func (x *machine) filter(t *testing.T, in, out []string) {
	t.Helper()
	rules := "flush ruleset\ntable ip cut {\n"
	for hook, drops := range map[string][]string{"input": in, "output": out} {
		rules += "chain " + hook + " { type filter hook " + hook + " priority 0;\n"
		for _, match := range drops {
			rules += match + " drop\n"
		}
		rules += "}\n"
	}
	rules += "}\n"
	cmd := exec.Command("nsenter", append(x.enter()[1:], "nft", "-f", "-")...)
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nft: %v: %s\n%s", err, out, rules)
	}
}

// run runs a command.
func run(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

// stop stops the services, which must have lived until now without a panic.
func (m *machines) stop() {
	for i, x := range m.all {
		said := x.child.LastOutput()
		if err := x.child.Stop(startLimit); err != nil {
			m.t.Errorf("machine %d: %v", i, err)
		}
		if strings.Contains(said, "panic:") || strings.Contains(said, "DATA RACE") {
			m.t.Errorf("machine %d: its log has a panic", i)
		}
		if m.t.Failed() {
			m.t.Logf("the last lines of machine %d:\n%s", i, said)
		}
	}
}

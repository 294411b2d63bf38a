package fdstore

import "testing"

func TestUnitIn(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/kv3fs.service\n":                                               "kv3fs.service",
		"0::/system.slice/system-kv3fs.slice/kv3fs@a.service/sub\n":                      "kv3fs@a.service",
		"12:pids:/user.slice\n1:name=systemd:/system.slice/kv3fs.service\n0::/other/x\n": "kv3fs.service",
		"0::/\n": "",
		"":       "",
	} {
		if got := unitIn(text); got != want {
			t.Errorf("unitIn(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestJobIn(t *testing.T) {
	const printed = "1234 kv3fs-keep@a.service stop    running\n1235 kv3fs.service        restart running\n1236 try.service start running\n"
	for unit, want := range map[string]Job{"kv3fs.service": RestartJob, "kv3fs-keep@a.service": StopJob, "other.service": NoJob} {
		if got := jobIn(printed, unit); got != want {
			t.Errorf("the job of %s is %q, want %q", unit, got, want)
		}
	}
}

// A process of another manager asks nobody.
func TestJobOfAnother(t *testing.T) {
	t.Setenv(envManager, "@kv3fs-hold-x")
	if job, err := JobOf(t.Context()); job != NoJob || err != nil {
		t.Errorf("%q, %v", job, err)
	}
}

// A manager that keeps nothing is none: neither a mount nor listeners may be left to it.
func TestManagersThatKeepNothing(t *testing.T) {
	for _, c := range []struct {
		manager, room string
		keeps         bool
	}{
		{"", "", false},
		{"/run/kv3fs-test/notify.sock", "", false}, // podman's
		{"/run/systemd/notify", "0", false},
		{"/run/systemd/notify", "64", true},
		{"@kv3fs-hold-x", "64", true},
	} {
		t.Setenv(envManager, c.manager)
		t.Setenv(envRoom, c.room)
		s, err := Inherit()
		if err != nil {
			t.Fatal(err)
		}
		if s.Managed() != c.keeps {
			t.Errorf("%q with room for %q: it is said to keep descriptors: %v", c.manager, c.room, s.Managed())
		}
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// grammar returns all commands and flags.
func grammar(t *testing.T) *kong.Kong {
	t.Helper()
	app, err := newParser(&flagValues{}, io.Discard, &teller{stderr: io.Discard}, func(bool) context.Context { return t.Context() })
	if err != nil {
		t.Fatal(err)
	}
	return app
}

// checkWith runs "serve --check" with a configuration file.
func checkWith(t *testing.T, config string, flags ...string) (status int, out, message string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kv3fs.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return usage(append([]string{"serve", "--check", "--config", file}, flags...)...)
}

const places = "data: /d\nmount: /m\n"

// The command line overrides the environment, which overrides the file, and --check says
// which one it was.
func TestConfigurationPrecedence(t *testing.T) {
	expect := func(want, from string, flags ...string) {
		t.Helper()
		status, out, message := checkWith(t, places+"cluster: file", flags...)
		if line := regexp.MustCompile(`(?m)^cluster: ` + want + `  # .*` + from); status != 0 || !line.MatchString(out) {
			t.Errorf("%d %s%s; want %s from %s", status, out, message, want, from)
		}
	}
	expect("file", `kv3fs\.yaml:3$`)
	t.Setenv("KV3FS_CLUSTER", "variable")
	expect("variable", "environment, KV3FS_CLUSTER")
	expect("flag", "command line", "--cluster", "flag")
}

// KV3FS_CONFIG names the file as --config does.
func TestConfigurationByVariable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kv3fs.yaml")
	if err := os.WriteFile(file, []byte(places+"workers: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KV3FS_CONFIG", file)
	if status, out, message := usage("serve", "--check"); status != 0 || !strings.Contains(out, "workers: 7  # "+file+":3") {
		t.Errorf("%d %s%s", status, out, message)
	}
	t.Setenv("KV3FS_CONFIG", "")
	if status, _, message := usage("serve", "--check"); status != exitUsage || !strings.Contains(message, "KV3FS_CONFIG") {
		t.Errorf("%d %s", status, message)
	}
}

// Values in a file are as they are spelt, and take what flags take.
func TestConfigurationSpelling(t *testing.T) {
	for config, want := range map[string]string{
		"cluster: 010":                           "cluster: 010 ",
		"cluster: 1e3":                           "cluster: 1e3 ",
		"cluster: on":                            "cluster: on ",
		"cluster: '007'":                         "cluster: 007 ",
		"block-bytes: 2MiB":                      "block-bytes: 2MiB ",
		"block-bytes: 4096":                      "block-bytes: 4KiB ",
		"pages-body-limit: 1.5MiB":               "pages-body-limit: 1536KiB ",
		"passthrough: off":                       "passthrough: off ",
		"pages-listen: off":                      "pages-listen: [off] ",
		"pages-listen: [127.0.0.1:1, 'unix:/a']": `pages-listen: ["127.0.0.1:1", "unix:/a"] `,
		"pages-listen:\n- 127.0.0.1:1\n- x=:2":   `pages-listen: ["127.0.0.1:1", "x=:2"] `,
		"readonly: yes":                          "readonly: true ",
		"remount: \"/a # b\"":                    `remount: "/a # b" `,
		"# nothing":                              "cluster: kv3fs  # default",
		"...":                                    "cluster: kv3fs  # default",
	} {
		status, out, message := checkWith(t, places+config)
		if status != 0 || !strings.Contains(out, "\n"+want) {
			t.Errorf("%q: %d %s%s; want %q", config, status, out, message, want)
		}
	}
}

// What --check prints is a configuration file with the same meaning.
func TestCheckIsAConfiguration(t *testing.T) {
	withoutOrigins := func(out string) string { return regexp.MustCompile(`  # .*`).ReplaceAllString(out, "") }
	_, first, message := checkWith(t, places+"pages-listen: ['a=:1', off.sock:2]\nworkers: 9\nlimit-mapped: 3GiB\nattr-timeout: 90s\nlog-level: debug", "--readonly", "--remount", "/a: b, \"c\"")
	status, second, again := checkWith(t, first)
	if first == "" || status != 0 || withoutOrigins(first) != withoutOrigins(second) {
		t.Errorf("%d %s%s\n%s\n%s", status, message, again, first, second)
	}
}

// A configuration error has exit status 2 and names the line, the key and the fix.
func TestConfigurationErrors(t *testing.T) {
	for config, want := range map[string]string{
		"clutser: x":                        `kv3fs.yaml:3: unknown key "clutser": serve has cluster`,
		"token-file: x":                     `unknown key "token-file": serve has admin-token-file and pages-token-file`,
		"listen: x":                         `unknown key "listen": serve has admin-listen and pages-listen`,
		"size: x":                           `unknown key "size"; the keys are the names of the flags of serve: admin-cert, admin-key, `,
		"config: x":                         `unknown key "config"`,
		"check: true":                       `unknown key "check"`,
		"version: true":                     `unknown key "version"`,
		"workers: many":                     "kv3fs.yaml:3: workers: ",
		"workers: -3":                       "kv3fs.yaml:3: workers: -3 is out of range; it must be 1 to 4096",
		"block-bytes: 1":                    "kv3fs.yaml:3: block-bytes: 1 B is out of range",
		"block-bytes: 12KiB":                "not a power of two",
		"deadline: -5s":                     "kv3fs.yaml:3: deadline: -5s is out of range",
		"deadline: 5":                       "kv3fs.yaml:3: deadline: ",
		"cluster: [a, b]":                   `kv3fs.yaml:3: key "cluster" must have a single value`,
		"cluster: {a: b}":                   `kv3fs.yaml:3: key "cluster" must have a single value`,
		"cluster: not a name":               "kv3fs.yaml:3: cluster: ",
		"io: mmap":                          `kv3fs.yaml:3: io: "mmap" is not one of auto, buffered, direct`,
		"- just\n- a list":                  "kv3fs.yaml:3: not YAML",
		"cluster:":                          `kv3fs.yaml:3: key "cluster" has no value`,
		"cluster: ~":                        `key "cluster" has no value`,
		"cluster: ''":                       `kv3fs.yaml:3: key "cluster" is empty`,
		"pages-listen: []":                  `key "pages-listen" is an empty list`,
		"pages-listen: [a, ]\nworkers: 1":   "pages-listen: address",
		"pages-listen: ['']":                `key "pages-listen" is empty`,
		"pages-listen: nowhere":             "kv3fs.yaml:3: pages-listen: ",
		"pages-token-file: /does/not/exist": "kv3fs.yaml:3: pages-token-file: ",
		"remount: relative":                 "kv3fs.yaml:3: remount: ",
		"data: /again":                      `already`,
		"cluster: x\n---\nworkers: 1":       "more than one YAML document",
		"cluster: x\n...\nworkers: 1":       "more than one YAML document",
	} {
		status, out, message := checkWith(t, places+config)
		if status != exitUsage || out != "" || !strings.Contains(message, want) {
			t.Errorf("%q: status %d, %q; want %d and %q", config, status, message, exitUsage, want)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--data"},
		{[]string{"--data", "/d", "--mount", ""}, "--mount: is empty"},
		{[]string{"--data", "", "--mount", "/m"}, "--data: is empty"},
		{[]string{"--data", "/d", "--mount", "/m", "--remount", "relative"}, "--remount: "},
		{[]string{"--data", "/d", "--mount", "/m", "--deadline=-5s"}, "--deadline: -5s is out of range; it must be 1ms to 24h"},
		{[]string{"--config", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"--config", "/"}, "--config"},
		{[]string{"--config", "/dev/zero"}, "no configuration file"},
	} {
		status, _, message := usage(append([]string{"serve", "--check"}, c.args...)...)
		if status != exitUsage || !strings.Contains(message, c.want) {
			t.Errorf("%q: status %d, %q; want %q", c.args, status, message, c.want)
		}
	}
	if status, _, message := checkWith(t, "data:\nmount: /m"); status != exitUsage || !strings.Contains(message, `:1: key "data" has no value`) {
		t.Errorf("data: null: %d %s", status, message)
	}
}

// Every flag with a number has a range, its bounds can be read, and its default is in it.
func TestRanges(t *testing.T) {
	seen := map[*kong.Value]bool{}
	for _, leaf := range grammar(t).Model.Leaves(false) {
		for _, flag := range leaf.Flags {
			if seen[flag.Value] {
				continue
			}
			seen[flag.Value] = true
			kind := flag.Target.Type()
			if kind.Kind() == reflect.Slice {
				kind = kind.Elem()
			}
			zero := reflect.Zero(kind)
			number := (zero.CanInt() || zero.CanUint() || zero.CanFloat() || kind == reflect.TypeFor[bandwidth]()) && flag.Name != "log-level"
			switch low, high, ok := strings.Cut(flag.Tag.Get("range"), ".."); {
			case number != ok:
				t.Errorf("%s --%s: range %q of a %v", leaf.Path(), flag.Name, flag.Tag.Get("range"), kind)
			case ok && low != "" && high != "" && !ordered(bound(flag.Value, low), bound(flag.Value, high)):
				t.Errorf("%s --%s: range %q", leaf.Path(), flag.Name, flag.Tag.Get("range"))
			}
			if flag.HasDefault && flag.Default != "" && flag.Default != "0" {
				if err := checkText(flag.Value, flag.Default); err != nil {
					t.Errorf("%s: default of %v", leaf.Path(), err)
				}
			}
			if flag.Name == "tp" && leaf.Name == "serve" && flag.Tag.Get("range") != fmt.Sprintf("1..%d", pageservice.MaxRanks) {
				t.Errorf("%s: range of --tp: %s", leaf.Path(), flag.Tag.Get("range"))
			}
		}
	}
}

// README promises that every flag of the two daemons but --check, --check-state, --takeover and --pages-start-over is a variable and a key.
func TestEveryFlagIsAVariableAndAKey(t *testing.T) {
	seen := 0
	for _, leaf := range grammar(t).Model.Leaves(false) {
		if path := leaf.Path(); path != "serve" && path != "pages serve" {
			continue
		}
		for _, flag := range leaf.Flags {
			switch flag.Name {
			case "help", "version", "check", "check-state", "takeover", "pages-start-over", "start-over": // the last is for one start only
				continue
			}
			seen++
			variable := "KV3FS_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
			if !slices.Contains(flag.Tag.Envs, variable) {
				t.Errorf("%s --%s: variables %q, want %s", leaf.Path(), flag.Name, flag.Tag.Envs, variable)
			}
			if isKey(flag) == (flag.Name == "config") {
				t.Errorf("%s --%s: a key: %t", leaf.Path(), flag.Name, isKey(flag))
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d flags", seen)
	}
}

// accepted are the absurd values that flags take, with their meaning: a pattern for
// command, flag and value.
var accepted = regexp.MustCompile(strings.Join([]string{
	`^serve drain 0s?$`, // cut clients off at once
	`^serve (attr|entry|negative|symlink)-timeout 0s?$`, // the kernel caches nothing
	`^replay speed 0$`, `^bench engine speed 0$`, // as fast as possible
	`^bench engine latency 0s?$`, `^plan overhead 0s?$`, // none
	`^plan hit 0$`,                                  // nothing is in the store
	`^trace generate (seed|think-time) 0s?$`,        // a seed like others; no pause
	`^bench (engine|hosts) seed 99999999999999999$`, // a seed like others
	`^bench engine node (0|99999999999999999)$`,     // a node like others
	`^(serve pages-|pages serve )free 0$`,           // no pages are kept free
	`^(serve pages-|pages serve )late-writes 0s?$`,  // none is late
	`^(pages )?serve trace-sample 0$`,               // only what clients trace
	`^pages forget-rank rank 0$`,                    // ranks count from 0
	`^keep scan-rate 0$`,                            // as fast as possible
	`^du depth 0$`,                                  // the directory alone
	`^ready wait 0s?$`,                              // once
	`^(ls|stat|evict) (min|max)-uses 0$`,            // used never
	`^(replay max-blocks|replay requests|plan capacity|trace generate seed|bench engine max-requests) 99999999999999999$`, // no bound
	`^serve (pages-)?(lease|hold|reserve|quarantine) `,                                                                    // below
}, "|"))

// TestAbsurdValues gives absurd values to every flag of every command, in each way in
// which it can be given: a number outside of the flag's range, and what is empty, is
// refused with exit status 2, which names the flag; no value makes the parser panic.
func TestAbsurdValues(t *testing.T) {
	dir := t.TempDir()
	tried := 0
	values := &flagValues{}
	app, err := newParser(values, io.Discard, &teller{stderr: io.Discard}, func(bool) context.Context { return t.Context() })
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range app.Model.Leaves(false) {
		command := strings.Fields(leaf.Path())
		reads := slices.ContainsFunc(leaf.Flags, func(f *kong.Flag) bool { return f.Target.Type() == reflect.TypeFor[configFile]() })
		for _, flag := range leaf.Flags {
			if flag.Name == "help" || flag.Name == "version" || flag.Tag.Get("yaml") == "-" {
				continue
			}
			kind := flag.Target.Type()
			zero := reflect.Zero(kind)
			number := zero.CanInt() || zero.CanUint() || zero.CanFloat()
			for _, value := range []string{"", "-1", "-1s", "0", "0s", "99999999999999999", "1e999", "NaN", "null", "[a, b]", "\x01", strings.Repeat("x", 1<<10)} {
				outside := value == "" || number && !accepted.MatchString(leaf.Path()+" "+flag.Name+" "+value)
				try := func(way string, args []string) {
					t.Helper()
					tried++
					_, err := app.Parse(append(slices.Clone(command), args...))
					if err != nil {
						err = values.explain(err)
					}
					if outside && (err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(way))) {
						t.Errorf("%s, %s, %.20q: %v", leaf.Path(), way, value, err)
					}
				}
				if flag.Target.Kind() != reflect.Bool || value != "" {
					try("--"+flag.Name, []string{"--" + flag.Name + "=" + value})
				}
				for _, env := range flag.Tag.Envs {
					os.Setenv(env, value)
					try(env, nil)
					os.Unsetenv(env)
				}
				if reads && isKey(flag) {
					file := filepath.Join(dir, "kv3fs.yaml")
					if err := os.WriteFile(file, []byte(flag.Name+": "+value+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
					try("kv3fs.yaml:1", []string{"--config", file})
				}
			}
		}
	}
	if tried < 3000 {
		t.Errorf("tried only %d", tried)
	}
}

// A command's mistakes are found before it runs, so that they have exit status 2.
func TestMistakesExitWithTwo(t *testing.T) {
	for _, args := range []string{
		"bench ring --data /d", "bench ring --sizes 5000", "bench ring --file-bytes 4KiB", "bench ring --rings 0",
		"bench pages --url nonsense", "bench pages --pages 100", "bench store --shard-bytes 5000", "bench store --keys 0",
		"bench hosts --store Posix", "bench engine nonsense", "bench engine random-twice --prompt-tokens 4000,5000", "bench engine trace",
		"replay --trace t --mount /m --dir ../x", "replay --trace t --mount /m --depth 0", "trace generate --requests 0",
		"pages ls --limit 0", "pages evict --keys 0", "pages clear", "pages forget-rank --rank 1", "pages stat --url nonsense",
	} {
		if status, _, message := usage(strings.Fields(args)...); status != exitUsage {
			t.Errorf("%s: %d %s", args, status, message)
		}
	}
}

// KV3FS_MOUNT and KV3FS_DATA, set for a daemon, do not change what a benchmark measures.
func TestBenchmarksIgnoreTheDaemonsVariables(t *testing.T) {
	t.Setenv("KV3FS_MOUNT", "/mnt/3fs")
	t.Setenv("KV3FS_DATA", "/var/lib/kv3fs")
	for _, args := range []string{"bench ring --scratch /dev/shm", "bench engine random-twice --store Posix"} {
		parsed := &cli{}
		app, err := kong.New(parsed, kong.Vars{"engines": ""}, kong.DefaultEnvars("KV3FS"), kong.Resolvers(&flagValues{}), kong.Bind(&flagValues{}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := app.Parse(strings.Fields(args)); err != nil || parsed.Bench.Ring.Mount != "" || parsed.Bench.Ring.Data != "" || parsed.Bench.Engine.Mount != "" {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// The flags about the data directory keep the root disk from replacing one that is not mounted.
func TestDataMustBeThere(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	for _, c := range []struct{ flag, data, want string }{
		{"--data-must-exist", missing, "create it"},
		{"--data-must-be-mount", dir, "not a mount point"},
		{"--data-must-be-mount", missing, "mount its disk"},
	} {
		for _, command := range [][]string{{"serve", "--mount", filepath.Join(t.TempDir(), "mnt")}, {"pages", "serve", "--listen", "127.0.0.1:0"}} {
			status, _, message := usage(append(command, "--data", c.data, c.flag)...)
			if status != exitFailed || !strings.Contains(message, c.want) {
				t.Errorf("%s %s %s: %d %s", command, c.flag, c.data, status, message)
			}
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the data directory was created")
	}
	if err := (dataFlags{DataMustExist: true}).check(dir); err != nil {
		t.Error(err)
	}
	if err := (dataFlags{DataMustBeMount: true}).check("/proc"); err != nil {
		t.Error(err)
	}
}

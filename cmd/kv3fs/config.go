package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// configFile is a flag that names a configuration file: a YAML mapping whose keys are the
// names of the command's other flags.
type configFile string

// flagValues finds the values of flags that are not on the command line, first in the
// environment, then in the configuration file, and checks the values of all three by the
// flags' tags:
//
//	range:"1..64"  numbers, sizes and durations; every such flag has it, and one bound may be missing
//	enum:"a,b"     strings
//	yaml:"-"       no key of configuration files
//
// No value may be empty.
type flagValues struct {
	file    string                        // the configuration file, "" without one
	texts   map[*kong.Flag]string         // what Resolve returns
	origins map[*kong.Value]origin        // of all values that are not defaults
	known   map[string]*kong.Value        // by name
	given   map[*kong.Value]reflect.Value // on the command line
	args    []string                      // the command line
}

// origin is where a value comes from.
type origin struct {
	name string // how the user calls it there: --workers, KV3FS_WORKERS, or kv3fs.yaml:7: workers
	from string // as serve --check shows it
}

// badValue is a mistake in the value of a flag, wherever the value comes from.
type badValue struct {
	flag string
	why  string
}

func (e *badValue) Error() string { return "--" + e.flag + ": " + e.why }

// notUTF8 says what is wrong with a text in a file. YAML cannot express other texts.
const notUTF8 = "is not UTF-8, as YAML must be; give such a path by its flag or variable"

// exactText sets a flag of any string type to the bytes that were given. kong's own mapper
// passes them through JSON, which replaces what is not UTF-8 and so names another file.
func exactText(ctx *kong.DecodeContext, target reflect.Value) error {
	text, err := givenText(ctx)
	if err == nil {
		target.SetString(text)
	}
	return err
}

// exactPath is exactText for paths.
func exactPath(ctx *kong.DecodeContext, target reflect.Value) error {
	text, err := givenText(ctx)
	if err != nil {
		return err
	}
	return target.Addr().Interface().(*givenPath).UnmarshalText([]byte(text))
}

func givenText(ctx *kong.DecodeContext) (string, error) {
	token, err := ctx.Scan.PopValue("string")
	if err != nil {
		return "", err
	}
	return fmt.Sprint(token.Value), nil
}

// bad returns the error that a flag's value is wrong.
func bad(flag, format string, args ...any) error {
	return &badValue{flag, fmt.Sprintf(format, args...)}
}

// explain adds to an error where the value comes from.
func (s *flagValues) explain(err error) error {
	var b *badValue
	if !errors.As(err, &b) {
		return err
	}
	if from, ok := s.origins[s.known[b.flag]]; ok {
		return errors.New(from.name + ": " + b.why)
	}
	return b
}

// BeforeResolve finds and checks all values, before any takes effect.
func (*cli) BeforeResolve(ctx *kong.Context, s *flagValues) error {
	return s.collect(ctx)
}

func (s *flagValues) collect(ctx *kong.Context) error {
	*s = flagValues{
		args:  s.args,
		texts: map[*kong.Flag]string{}, origins: map[*kong.Value]origin{}, known: map[string]*kong.Value{},
		given: map[*kong.Value]reflect.Value{},
	}
	var flags []*kong.Flag
	for _, p := range ctx.Path {
		flags = append(flags, p.Flags...)
		switch {
		case p.Flag != nil:
			s.given[p.Flag.Value] = ctx.Value(p)
			s.origins[p.Flag.Value] = origin{"--" + p.Flag.Name, "command line"}
		case p.Positional != nil:
			s.given[p.Positional] = ctx.Value(p)
			s.origins[p.Positional] = origin{p.Positional.ShortSummary(), "command line"}
		}
	}
	for _, flag := range flags {
		s.known[flag.Name] = flag.Value
	}
	for value, v := range s.given {
		s.known[value.Name] = value
		if err := checkValue(value, v); err != nil {
			return s.explain(err)
		}
	}
	inFile, err := s.readFile(ctx, flags)
	if err != nil {
		return err
	}
	for _, flag := range flags {
		if _, ok := s.given[flag.Value]; ok {
			continue
		}
		if name, text, ok := environment(flag); ok {
			s.origins[flag.Value] = origin{name, "environment, " + name}
			s.texts[flag] = text
			if err := checkText(flag.Value, text); err != nil {
				return s.explain(err)
			}
		} else if e, ok := inFile[flag.Name]; ok {
			s.origins[flag.Value] = origin{e.name(s.file), e.place(s.file)}
			s.texts[flag] = e.text(flag.Tag.Sep)
		}
	}
	return nil
}

// environment returns the variable that sets a flag.
func environment(flag *kong.Flag) (name, text string, ok bool) {
	for _, name := range flag.Tag.Envs {
		if text, ok := os.LookupEnv(name); ok {
			return name, text, true
		}
	}
	return "", "", false
}

// readFile reads the configuration file of the command, if one was given. All its values
// are checked, also those that a variable or the command line overrides.
func (s *flagValues) readFile(ctx *kong.Context, flags []*kong.Flag) (map[string]yamlEntry, error) {
	i := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Target.Type() == reflect.TypeFor[configFile]() })
	if i < 0 {
		return nil, nil
	}
	name := "--config"
	if v, ok := s.given[flags[i].Value]; ok {
		s.file = v.String()
	} else if env, text, ok := environment(flags[i]); ok {
		name, s.file = env, text
		if text == "" {
			return nil, fmt.Errorf("%s is empty; it must name a file, or be unset", env)
		}
	} else {
		return nil, nil
	}
	s.file = kong.ExpandPath(s.file)
	entries, err := readYAML(s.file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	command := ctx.Selected()
	var keys []string
	for _, flag := range flags {
		if isKey(flag) {
			keys = append(keys, flag.Name)
		}
	}
	slices.Sort(keys)
	byName := map[string]yamlEntry{}
	for _, e := range entries {
		if !slices.Contains(keys, e.key) {
			return nil, fmt.Errorf("%s: unknown key %q%s", e.place(s.file), e.key, unknownKey(command.Path(), e.key, keys))
		}
		byName[e.key] = e
		value := s.known[e.key]
		if e.wrong != "" {
			return nil, fmt.Errorf("%s: key %q %s", e.place(s.file), e.key, e.wrong)
		}
		if e.isList && value.Target.Kind() != reflect.Slice {
			return nil, fmt.Errorf("%s: key %q must have a single value, not a list", e.place(s.file), e.key)
		}
		if slices.Contains(e.values, "") {
			return nil, fmt.Errorf("%s: key %q is empty; give it a value, or remove it for the default", e.place(s.file), e.key)
		}
		var b *badValue
		if err := checkText(value, e.text(value.Tag.Sep)); errors.As(err, &b) {
			return nil, fmt.Errorf("%s: %s", e.name(s.file), b.why)
		}
	}
	return byName, nil
}

// unknownKey says which keys there are.
func unknownKey(command, key string, keys []string) string {
	if near := spelling.Nearest(key, keys, 2); len(near) > 0 {
		return fmt.Sprintf(": %s has %s", command, strings.Join(near, " and "))
	}
	return fmt.Sprintf("; the keys are the names of the flags of %s: %s", command, strings.Join(keys, ", "))
}

// isKey reports whether a configuration file can set a flag.
func isKey(flag *kong.Flag) bool {
	return flag.Name != "help" && flag.Tag.Get("yaml") != "-" && flag.Target.Type() != reflect.TypeFor[configFile]()
}

// Validate is part of kong.Resolver.
func (*flagValues) Validate(*kong.Application) error { return nil }

// Resolve returns the value of a flag that is not on the command line, as text.
func (s *flagValues) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if text, ok := s.texts[flag]; ok {
		return text, nil
	}
	return nil, nil
}

// checkText checks the text of a value.
func checkText(value *kong.Value, text string) error {
	if text == "" {
		return bad(value.Name, "is empty; give it a value, or leave it out for the default")
	}
	v, err := parseText(value, text)
	if err != nil {
		return bad(value.Name, "%v", err)
	}
	return checkValue(value, v)
}

// parseText parses a value without setting it.
func parseText(value *kong.Value, text string) (reflect.Value, error) {
	v := reflect.New(value.Target.Type()).Elem()
	scan := kong.Scan().PushTyped(text, kong.FlagValueToken)
	return v, value.Mapper.Decode(&kong.DecodeContext{Value: value, Scan: scan}, v)
}

// checkValue checks a value that was given, by the tags of its flag.
func checkValue(value *kong.Value, v reflect.Value) error {
	if v.Kind() == reflect.Slice {
		if v.Len() == 0 {
			return bad(value.Name, "is empty; give it a value, or leave it out for the default")
		}
		for i := range v.Len() {
			if err := checkOne(value, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return checkOne(value, v)
}

func checkOne(value *kong.Value, v reflect.Value) error {
	if v.Kind() == reflect.String {
		switch text := v.String(); {
		case text == "" && v.Type() == reflect.TypeFor[string]():
			return bad(value.Name, "is empty; give it a value, or leave it out for the default")
		case strings.ContainsRune(text, 0):
			return bad(value.Name, "%q contains a NUL byte", text)
		}
	}
	if value.Enum != "" && !slices.Contains(value.EnumSlice(), fmt.Sprint(v)) {
		words := slices.DeleteFunc(value.EnumSlice(), func(word string) bool { return word == "" }) // "" is the default's
		return bad(value.Name, "%q is not one of %s", fmt.Sprint(v), strings.Join(words, ", "))
	}
	low, high, ok := strings.Cut(value.Tag.Get("range"), "..")
	if ok && (low != "" && !ordered(bound(value, low), v) || high != "" && !ordered(v, bound(value, high))) {
		return bad(value.Name, "%v is out of range; it must be %s", v, rangeText(low, high))
	}
	return nil
}

func rangeText(low, high string) string {
	switch {
	case high == "":
		return "at least " + low
	case low == "":
		return "at most " + high
	}
	return low + " to " + high
}

// bound parses a bound of a flag's range, which is written as values of the flag are.
func bound(value *kong.Value, text string) reflect.Value {
	v, err := parseText(value, text)
	if err != nil {
		panic(fmt.Sprintf("range of --%s: %v", value.Name, err)) // TestRanges looks at all
	}
	if v.Kind() == reflect.Slice {
		return v.Index(0)
	}
	return v
}

// ordered reports whether a <= b.
func ordered(a, b reflect.Value) bool {
	if a.Type() == reflect.TypeFor[bandwidth]() {
		return a.Interface().(bandwidth).BytesPerSecond <= b.Interface().(bandwidth).BytesPerSecond
	}
	switch {
	case a.CanInt():
		return a.Int() <= b.Int()
	case a.CanUint():
		return a.Uint() <= b.Uint()
	}
	return a.Float() <= b.Float()
}

// write prints the values of a command's flags as a configuration file, with where they
// come from. Flags that have neither a value nor a default are comments.
func (s *flagValues) write(out io.Writer, command *kong.Node) error {
	var b strings.Builder
	for _, flag := range command.Flags {
		if !isKey(flag) || flag.Hidden {
			continue
		}
		from, given := s.origins[flag.Value]
		if !given && !flag.HasDefault && flag.Target.Kind() != reflect.Bool {
			fmt.Fprintf(&b, "# %s:  # not set\n", flag.Name)
			continue
		}
		if !given {
			from.from = "default"
		}
		if value := fmt.Sprint(flag.Target.Interface()); !utf8.ValidString(value) {
			fmt.Fprintf(&b, "# %s: %q  # %s; %s\n", flag.Name, value, from.from, notUTF8)
			continue
		}
		fmt.Fprintf(&b, "%s: %s  # %s\n", flag.Name, yamlText(flag.Target), from.from)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

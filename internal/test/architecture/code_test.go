package architecture

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// meantToChange are the globals that may change, and why.
var meantToChange = map[string]string{
	"internal/test/daemontest shared": "one daemon for all tests of a process; tests have no other place for it",
	"internal/test/hostile users":     "numbers the users of all tests of a process",
}

// breaches names everything in the packages that breaks a rule for code.
func breaches(all []source) []string {
	var found []string
	for _, s := range all {
		add := func(format string, args ...any) { found = append(found, s.path+": "+fmt.Sprintf(format, args...)) }
		packageComment(s, add)
		for _, f := range s.files {
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					add("has an init function")
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if what := endsProcess(n); what != "" && !s.command() {
						add("calls %s; only cmd may end the process", what)
					}
					if what := wallClock(n); what != "" && isBetweenHosts(s.path) {
						add("uses %s: wall clocks jump, and hosts' differ; host.SinceBoot and times of one process do not", what)
					}
				case *ast.StructType:
					contexts(n, add)
					if isBetweenHosts(s.path) {
						writtenTimes(n, add)
					}
				}
				return true
			})
		}
		if !s.command() {
			for _, name := range mutableGlobals(s) {
				if meantToChange[s.path+" "+name] == "" {
					add("has a mutable global: %s", name)
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// packageComment requires a package comment that begins as go doc expects.
func packageComment(s source, add func(string, ...any)) {
	for _, f := range s.files {
		if f.Doc == nil {
			continue
		}
		want := "Package " + f.Name.Name + " "
		if f.Name.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(f.Doc.Text(), want) {
			add("its package comment does not begin with %q", want)
		}
		return
	}
	add("has no package comment")
}

func endsProcess(sel *ast.SelectorExpr) string {
	pkg, ok := sel.X.(*ast.Ident)
	if !ok || pkg.Obj != nil {
		return ""
	}
	name := pkg.Name + "." + sel.Sel.Name
	switch {
	case name == "os.Exit", name == "syscall.Exit", name == "unix.Exit",
		pkg.Name == "log" && (strings.HasPrefix(sel.Sel.Name, "Fatal") || strings.HasPrefix(sel.Sel.Name, "Panic")):
		return name
	}
	return ""
}

// isBetweenHosts reports whether a package is a part of what hosts agree on. None of them may compare wall clocks: of
// two hosts, or of one before and after it was set. A test cannot set the clock of one host of several, since
// namespaces have none of their own.
func isBetweenHosts(path string) bool {
	return path == "internal/cluster" || strings.HasPrefix(path, "internal/pageservice") && path != "internal/pageservice/indextest"
}

// wallClock returns how a selector makes a number of a wall clock, or a time of what was written: times that time.Now
// returns are compared by the monotonic clock, as long as they stay in the process.
func wallClock(sel *ast.SelectorExpr) string {
	switch name := sel.Sel.Name; name {
	case "Unix", "UnixMilli", "UnixMicro", "UnixNano":
		return name
	case "Parse", "ParseInLocation", "Date":
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" {
			return "time." + name
		}
	}
	return ""
}

// writtenTimes allows times in what is written only for people.
func writtenTimes(s *ast.StructType, add func(string, ...any)) {
	for _, field := range s.Fields.List {
		sel, ok := field.Type.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Time" || field.Tag == nil || strings.Contains(field.Comment.Text(), "for people") {
			continue
		}
		add("writes a time: wall clocks jump, and hosts' differ: %s", field.Tag.Value)
	}
}

// contexts requires a comment, with the reason, at every context in a struct.
func contexts(s *ast.StructType, add func(string, ...any)) {
	for _, field := range s.Fields.List {
		sel, ok := field.Type.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Context" || field.Doc != nil || field.Comment != nil {
			continue
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "context" {
			name := "(embedded)"
			if len(field.Names) > 0 {
				name = field.Names[0].Name
			}
			add("keeps a context in a struct without saying why: %s", name)
		}
	}
}

// mutableGlobals names the package-level variables that something changes: those
// that are assigned, indexed into by an assignment, deleted from or pointed to; and
// those that only make sense if changed: without a value, or of a type that locks
// or counts.
func mutableGlobals(s source) []string {
	globals := map[string]*ast.ValueSpec{}
	var found []string
	for _, f := range s.files {
		for _, decl := range f.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.VAR {
				continue
			}
			for _, spec := range group.Specs {
				spec := spec.(*ast.ValueSpec)
				for _, name := range spec.Names {
					if name.Name == "_" {
						continue
					}
					globals[name.Name] = spec
					if len(spec.Values) == 0 && !embeds(group, spec) || synchronizes(spec) {
						found = append(found, name.Name)
					}
				}
			}
		}
	}
	// changed records the variable at the root of an expression such as v.f[i].
	changed := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.SliceExpr:
				e = x.X
			case *ast.Ident:
				spec := globals[x.Name]
				if spec != nil && (x.Obj == nil || x.Obj.Decl == spec) {
					found = append(found, x.Name)
				}
				return
			default:
				return
			}
		}
	}
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, e := range n.Lhs {
						changed(e)
					}
				}
			case *ast.IncDecStmt:
				changed(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					changed(n.X)
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && fn.Obj == nil && len(n.Args) > 0 && (fn.Name == "delete" || fn.Name == "clear" || fn.Name == "copy") {
					changed(n.Args[0])
				}
			case *ast.RangeStmt:
				if n.Tok == token.ASSIGN {
					changed(n.Key)
				}
			}
			return true
		})
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func embeds(group *ast.GenDecl, spec *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{group.Doc, spec.Doc} {
		if doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") }) {
			return true
		}
	}
	return false
}

// synchronizes reports whether a variable's type, as far as the declaration shows it,
// comes from sync or sync/atomic. A sync.Pool holds nothing that code may rely on.
func synchronizes(spec *ast.ValueSpec) (is bool) {
	look := func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Obj == nil && (pkg.Name == "sync" && sel.Sel.Name != "Pool" || pkg.Name == "atomic") {
				is = true
			}
		}
		_, inside := n.(*ast.FuncLit)
		return !inside
	}
	if spec.Type != nil {
		ast.Inspect(spec.Type, look)
	}
	for _, v := range spec.Values {
		if c, ok := v.(*ast.CompositeLit); ok && c.Type != nil {
			ast.Inspect(c.Type, look)
		}
	}
	return is
}

func TestCode(t *testing.T) {
	for _, breach := range breaches(parse(t, repository)) {
		t.Error(breach)
	}
}

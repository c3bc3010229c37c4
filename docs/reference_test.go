package docs

import (
	"cmp"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/docs/reference"
	"libra.dev/libra/pkg/kubectl"
)

var update = flag.Bool("update", false, "write the pages of docs/reference anew")

func TestReferenceOfFields(t *testing.T) {
	p := reference.New("Fields of Libra's own objects",
		"`kubectl explain harvestpolicies.spec` and its like say the same. [Settings](../settings.md), [reports](../reports.md) and [placement policies](../placement-policies.md) say how to use them.")
	names, err := filepath.Glob("../manifests/base/crds/libra.dev_*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d definitions, %v", len(names), err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, version := range crd.Spec.Versions {
			p.Table(crd.Spec.Names.Kind+", "+version.Name, "field", "type", "meaning")
			for _, part := range []string{"spec", "status"} {
				fields(p, part, version.Schema.OpenAPIV3Schema.Properties[part])
			}
		}
	}
	p.Check(t, "..", "fields.md", *update)
}

// fields adds a row for each field below the one at path.
func fields(p *reference.Page, path string, of apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(of.Properties)) {
		field, at := of.Properties[name], path+"."+name
		says, kind := field.Description, cmp.Or(field.Type, "integer or string")
		element := field
		if field.Items != nil {
			at, element = at+"[]", *field.Items.Schema
			kind = "array of " + cmp.Or(element.Type, "integer or string")
		}
		for _, value := range field.Enum {
			kind += ", " + reference.Code(strings.Trim(string(value.Raw), `"`))
		}
		if field.Default != nil {
			says += " Default: " + reference.Code(strings.Trim(string(field.Default.Raw), `"`))
		}
		p.Row(reference.Code(at), kind, says)
		fields(p, at, element)
	}
}

// parse reads the sources of a folder, without its tests.
func parse(t *testing.T, dir string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%d sources in %s, %v", len(names), dir, err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// names maps the names of constants in a source to their values.
type names map[string]string

// text returns the value of an expression: a sum of literals and constants, a duration, or the default of a
// variable of the environment.
func (n names) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil {
			return s
		}
		return e.Value
	case *ast.Ident:
		return cmp.Or(n[e.Name], map[string]string{"true": "true", "false": "false"}[e.Name])
	case *ast.SelectorExpr:
		return cmp.Or(n[e.Sel.Name], map[string]string{"Millisecond": "ms", "Second": "s", "Minute": "m"}[e.Sel.Name])
	case *ast.BinaryExpr:
		return n.text(e.X) + n.text(e.Y)
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Or" {
			return n.text(e.Args[1])
		}
	}
	return ""
}

// namesOf returns the constants of folders.
func namesOf(t *testing.T, dirs ...string) names {
	all := names{}
	for _, dir := range dirs {
		constants(parse(t, dir), func(name, value, _, _ string) { all[name] = value })
	}
	return all
}

// constants calls each with every string constant of the files, its comment and that of its block.
func constants(files []*ast.File, each func(name, value, comment, block string)) {
	for _, file := range files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				continue
			}
			for _, s := range decl.Specs {
				spec := s.(*ast.ValueSpec)
				for i, value := range spec.Values {
					if s := (names{}).text(value); s != "" {
						each(spec.Names[i].Name, s, cmp.Or(spec.Doc.Text(), spec.Comment.Text()), decl.Doc.Text())
					}
				}
			}
		}
	}
}

func TestReferenceOfLabels(t *testing.T) {
	p := reference.New("Labels, annotations and headers",
		"The names that you write, and those that Libra writes. [Opting in](../opt-in.md) and [modes](../modes.md) say how to use them.")
	constant := namesOf(t, "pkg/api", "pkg/kubectl/swap")
	type name struct{ value, comment string }
	var all []name
	for _, dir := range []string{"pkg/api", "pkg/kubectl/swap"} {
		constants(parse(t, dir), func(constant, value, comment, _ string) {
			if comment != "" && (strings.HasSuffix(constant, "Label") || strings.HasSuffix(constant, "Annotation") || strings.HasSuffix(constant, "Header")) {
				all = append(all, name{value, comment})
			}
		})
	}
	p.Table("", "name", "meaning")
	for _, n := range all {
		p.Row(reference.Code(n.value), regexp.MustCompile(`\b[A-Z]\w+\b`).ReplaceAllStringFunc(n.comment, func(word string) string {
			return cmp.Or(reference.Code(constant[word]), word)
		}))
	}
	p.Check(t, "..", "labels.md", *update)
}

// eventTypes returns the types of Events that are named within a node of the syntax tree.
func eventTypes(n ast.Node) map[string]bool {
	types := map[string]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if kind, ok := strings.CutPrefix(s.Sel.Name, "EventType"); ok {
				types[kind] = true
			}
		}
		return true
	})
	return types
}

func TestReferenceOfEvents(t *testing.T) {
	p := reference.New("Events",
		"`kubectl get events --all-namespaces --field-selector reason=REASON` finds them.")
	for _, dir := range []string{"activator-plugin/invocation", "activator-plugin/placement/tapp", "activator-plugin/duplicator", "resizer/controller", "resizer/policies"} {
		files := parse(t, dir)
		heading := ""
		constants(files, func(constant, reason, comment, block string) {
			on, ok := strings.CutPrefix(block, "Reasons of Events ")
			if !ok {
				return
			}
			if heading == "" {
				heading = "Events " + strings.TrimSuffix(strings.TrimSpace(on), ".")
				p.Table(heading, "reason", "type", "meaning")
			}
			if comment == "" {
				t.Errorf("%s: %s has no comment that says when it is told", dir, constant)
			}
			p.Row(reference.Code(reason), eventType(t, files, constant), comment)
		})
		if heading == "" {
			t.Errorf("%s has no constants below a comment that begins with \"Reasons of Events\"", dir)
		}
	}
	p.Check(t, "..", "events.md", *update)
}

// eventType returns an Event's type: the one in the call that names the reason, or the package's only one.
func eventType(t *testing.T, files []*ast.File, constant string) string {
	t.Helper()
	found, all := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		maps.Copy(all, eventTypes(file))
		ast.Inspect(file, func(n ast.Node) bool {
			var among []ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				among = n.Args
			case *ast.CompositeLit:
				among = n.Elts
			}
			if slices.ContainsFunc(among, func(e ast.Expr) bool { i, ok := e.(*ast.Ident); return ok && i.Name == constant }) {
				maps.Copy(found, eventTypes(n))
			}
			return true
		})
	}
	if len(found) == 0 {
		found = all
	}
	if len(found) != 1 {
		t.Errorf("%s is told with %d types", constant, len(found))
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

func TestReferenceOfFlags(t *testing.T) {
	p := reference.New("Flags and variables of the parts",
		"Arguments of the containers, and the environment of the activator, which has no arguments of Libra's. For the predictor's, ask it: `python -m libra_predictor --help`.")
	p.Table("Activator", "variable", "default", "meaning")
	for _, file := range parse(t, "activator-plugin/cmd/activator") {
		ast.Inspect(file, func(n ast.Node) bool {
			if n, ok := n.(*ast.TypeSpec); ok && (n.Name.Name == "libraConfig" || n.Name.Name == "duplicatorConfig") {
				variables(t, p, n.Type.(*ast.StructType))
			}
			return true
		})
	}
	p.Row("`LIBRA_METRICS_ADDR`", "`:9095`", "address of [its metrics](../dashboards.md#1-see-that-the-activator-answers)")
	for _, part := range []struct{ name, dir string }{{"Node agent", "resizer/cmd/agent"}, {"Resizer", "resizer/cmd/controller"}} {
		p.Table(part.name, "flag", "default", "meaning")
		constant := namesOf(t, part.dir, "pkg/redisconn")
		for _, file := range parse(t, part.dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				f, ok := call.Fun.(*ast.SelectorExpr)
				if pkg, is := callee(f); ok && is && pkg == "flag" && len(call.Args) >= 3 {
					name, value, says := call.Args[len(call.Args)-3], call.Args[len(call.Args)-2], call.Args[len(call.Args)-1]
					p.Row(reference.Code("--"+constant.text(name)), reference.Code(constant.text(value)), constant.text(says))
				}
				return true
			})
		}
	}
	p.Check(t, "..", "flags.md", *update)
}

// variables adds a row for each field that envconfig reads.
func variables(t *testing.T, p *reference.Page, s *ast.StructType) {
	for _, field := range s.Fields.List {
		if !field.Names[0].IsExported() {
			continue
		}
		name := "LIBRA_" + strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(field.Names[0].Name, "${1}_$2"))
		var value string
		if field.Tag != nil {
			value = reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("default")
		}
		if field.Doc.Text() == "" {
			t.Errorf("%s has no comment that says what it is", name)
		}
		p.Row(reference.Code(name), reference.Code(value), field.Doc.Text())
	}
}

func callee(f *ast.SelectorExpr) (pkg string, ok bool) {
	if f == nil {
		return "", false
	}
	x, ok := f.X.(*ast.Ident)
	if !ok {
		return "", false
	}
	return x.Name, true
}

func TestReferenceOfKubectl(t *testing.T) {
	p := reference.New("kubectl libra: all commands and options",
		"[How to use them](../kubectl-libra.md). Every command also takes kubectl's options for which cluster and namespace to use, and as whom, such as `--context`, `--namespace` and `--as`: the end of its `--help` lists them.")
	root := kubectl.NewRoot(genericiooptions.NewTestIOStreamsDiscard())
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || !sub.IsAvailableCommand() {
				continue
			}
			path := strings.TrimPrefix(sub.CommandPath(), "kubectl-")
			p.WriteString("\n## " + path + "\n\n```text\n" + cmp.Or(sub.Long, sub.Short) + "\n\nUsage:\n  " + sub.UseLine() + "\n")
			if sub.Example != "" {
				p.WriteString("\nExamples:\n" + sub.Example + "\n")
			}
			p.WriteString("```\n")
			if sub.LocalNonPersistentFlags().HasAvailableFlags() {
				p.Table("", "option", "default", "meaning")
				sub.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
					if f.Name != "help" && !f.Hidden {
						kind, says := pflag.UnquoteUsage(f)
						name := strings.TrimSpace("--" + f.Name + " " + kind)
						if f.Shorthand != "" {
							name = "-" + f.Shorthand + ", " + name
						}
						p.Row(reference.Code(name), reference.Code(f.DefValue), says)
					}
				})
			}
			visit(sub)
		}
	}
	visit(root)
	p.Check(t, "..", "kubectl-libra.md", *update)
}

/* cases_text.c: a case as text, which every failure prints and `ridge test` takes back: the words of the problem, and
 * those of the layout, which only the driver knows. */
#include <string.h>

#include "family.h"

const char case_blanks[] = " \t\n";

static const char *const pad_names[] = {"all", "outputs", "single_rows", NULL};
static const char *const fill_names[] = {"normal", "unit",  "edge",    "every", "groups",
                                         "period", "exact", "special", NULL};

/* The place of `value` in a list of names. */
static bool number_of_name(const char *const *names, const char *value, uint64_t *number)
{
    for (*number = 0; names[*number]; ++*number)
        if (strcmp(names[*number], value) == 0)
            return true;
    return false;
}

/* Words that only the driver knows: how operands lie in memory, what they hold, which runs a test makes. False: not one
 * of those, or (*bad) not its value. */
static bool layout_word(const char *word, const check_family *family, test_case *c, bool *bad)
{
    uint64_t value = 0, padded = c->pad_of, fill = c->fill;
    const struct layout_name {
        const char *name;
        uint64_t most;
        int *number;
        bool *flag;
        const char *const *choices;
        uint64_t *choice;
    } list[] = {{"pad=", 4096, .number = &c->pad},
                {"shift=", 4096, .number = &c->shift},
                {"fused=", 1, .flag = &c->fused},
                {"alias=", 1, .flag = &c->alias},
                {"slices=", 1, .flag = &c->slices},
                {"repeats=", 1000000, .number = &c->repeats},
                {"units=", 1024, .number = &c->units},
                {"variant=", (uint64_t)family->variants, .number = &c->variant},
                {"pad_of=", .choices = pad_names, .choice = &padded},
                {"fill=", .choices = fill_names, .choice = &fill}};

    for (const struct layout_name *l = list; l < list + sizeof list / sizeof list[0]; l++) {
        const char *const given = word + strlen(l->name);

        if (strncmp(word, l->name, strlen(l->name)) != 0)
            continue;
        *bad = !(l->choices ? number_of_name(l->choices, given, &value) : number_whole(given, 0, l->most, &value));
        if (*bad)
            return false;
        if (l->number)
            *l->number = (int)value;
        else if (l->flag)
            *l->flag = value != 0;
        else
            *l->choice = value;
        c->pad_of = (pad_of)padded;
        c->fill = (fill_kind)fill;
        return true;
    }
    return false;
}

static size_t smallest_element(const ridge_call *call)
{
    const ridge_op_row *op = ridge_op_at(call->op);
    size_t size = 16;

    for (int arg = 0; arg < op->args; arg++)
        if (op->arg[arg].kind == RIDGE_MATRIX && call->arg[arg].dtype != RIDGE_NONE &&
            ridge_dtype_size(call->arg[arg].dtype) < size)
            size = ridge_dtype_size(call->arg[arg].dtype);
    return size;
}

bool case_parse(const char *text, test_case *c)
{
    char copy[1024], *rest = NULL, problem[1024] = "";
    size_t used = 0, name;
    const check_family *family;
    const ridge_op_row *op;
    ridge_problem as;
    bool good, bad = false;

    text += strspn(text, case_blanks);
    name = strcspn(text, case_blanks);
    op = ridge_op_find(text, name);
    good = op && strlen(text) < sizeof copy;
    family = op ? check_family_of(op->id) : NULL;
    memset(c, 0, sizeof *c);
    c->fill = FILL_UNIT;
    if (!op)
        fprintf(stderr, "ridge: there is no op '%.*s' (see `ridge ops`)\n", (int)name, text);
    else if (!good)
        fprintf(stderr, "ridge: %s: the problem is longer than %zu characters\n", op->name, sizeof copy - 1);
    if (good)
        memcpy(copy, text, strlen(text) + 1);
    for (char *word = good ? strtok_r(copy + name, case_blanks, &rest) : NULL; word && good;
         word = strtok_r(NULL, case_blanks, &rest)) {
        if (layout_word(word, family, c, &bad))
            continue;
        good = !bad && used + strlen(word) + 2 <= sizeof problem;
        if (good)
            used += (size_t)snprintf(problem + used, sizeof problem - used, " %s", word);
        else
            fprintf(stderr, "ridge: %s: %s '%s'\n", op->name, bad ? "bad value in" : "the problem is too long at",
                    word);
    }
    if (good && ridge_problem_parse(op, problem, &c->call, &as)) {
        fprintf(stderr, "ridge: %s\n", ridge_error());
        good = false;
    }
    if (good && 1u << as.align < smallest_element(&c->call)) {
        fprintf(stderr, "ridge: %s: no operand is aligned to %d byte%s alone: its elements are %zu\n", op->name,
                1 << as.align, as.align ? "s" : "", smallest_element(&c->call));
        good = false;
    }
    if (good && c->fill == FILL_EXACT && !family->exact_sums) {
        fprintf(stderr, "ridge: %s: fill=exact is for ops whose sums are exact on small integers\n", op->name);
        good = false;
    }
    if (good && c->slices && !(op->contract & RIDGE_INVARIANT) && !(family->row_wise && family->row_wise(&c->call))) {
        fprintf(stderr, "ridge: %s: slices=1 is for ops whose rows depend on nothing else\n", op->name);
        good = false;
    }
    if (good && as.align < 4 && as.inputs_align == as.align)
        c->shift = (1 << as.align) / (int)smallest_element(&c->call);
    if (good && as.inputs_align > as.align && c->pad == 0) {
        c->pad = (1 << as.align) / (int)smallest_element(&c->call);
        c->pad_of = PAD_OUTPUTS;
    }
    if (good && !as.packed && c->pad == 0 && !c->fused)
        c->pad = 16 / (int)smallest_element(&c->call);
    return good;
}

void case_print(const test_case *c, char *text, size_t size)
{
    const size_t used = (size_t)ridge_problem_print(&c->call, NULL, text, size);
    char fill[24] = "", pad[48] = "", shift[24] = "", variant[24] = "", repeats[24] = "", units[24] = "";

    if (used >= size)
        return;
    if (c->fill != FILL_UNIT) /* what case_parse takes it for */
        snprintf(fill, sizeof fill, " fill=%s", fill_names[c->fill]);
    if (c->pad)
        snprintf(pad, sizeof pad, " pad=%d%s%s", c->pad, c->pad_of ? " pad_of=" : "",
                 c->pad_of ? pad_names[c->pad_of] : "");
    if (c->shift)
        snprintf(shift, sizeof shift, " shift=%d", c->shift);
    if (c->variant)
        snprintf(variant, sizeof variant, " variant=%d", c->variant);
    if (c->repeats)
        snprintf(repeats, sizeof repeats, " repeats=%d", c->repeats);
    if (c->units)
        snprintf(units, sizeof units, " units=%d", c->units);
    snprintf(text + used, size - used, "%s%s%s%s%s%s%s%s%s", c->fused ? " fused=1" : "", c->alias ? " alias=1" : "",
             fill, pad, shift, variant, c->slices ? " slices=1" : "", repeats, units);
}

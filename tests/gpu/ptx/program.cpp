#include "tests/gpu/ptx/program.h"

#include <fmt/format.h>

#include <cxxabi.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace ptx {
namespace {

constexpr std::string_view kBlank = " \t\n\r";

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// Splits at separators that stand in no brackets.
std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    int depth = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        const char c = i < text.size() ? text[i] : separator;
        depth += c == '{' || c == '[' || c == '(' ? 1 : c == '}' || c == ']' || c == ')' ? -1 : 0;
        if (c != separator || (depth != 0 && i < text.size())) continue;
        if (const auto part = trimmed(text.substr(first, i - first)); !part.empty()) parts.push_back(part);
        first = i + 1;
    }
    return parts;
}

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

/// Returns the first word and takes it off the text.
std::string_view take_word(std::string_view& text) {
    text = trimmed(text);
    std::size_t n = 0;
    while (n < text.size() && (is_word(text[n]) || text[n] == ':')) ++n;
    const std::string_view word = text.substr(0, n);
    text = trimmed(text.substr(n));
    return word;
}

/// Overwrites comments with blanks, so that lines keep their numbers.
void blank_comments(std::string& text) {
    for (std::size_t at = text.find("/"); at != std::string::npos; at = text.find("/", at + 1)) {
        const bool to_line = text.compare(at, 2, "//") == 0, to_end = text.compare(at, 2, "/*") == 0;
        if (!to_line && !to_end) continue;
        const std::size_t end =
            std::min(text.size(), to_line ? text.find('\n', at) : text.find("*/", at) + 2);
        for (std::size_t i = at; i < end; ++i)
            if (text[i] != '\n') text[i] = ' ';
    }
}

/// Returns the bytes of a type (".b32", "f32"); 0 for a predicate.
std::optional<std::uint8_t> bytes_of(std::string_view type) {
    if (!type.empty() && type[0] == '.') type.remove_prefix(1);
    if (type == "pred") return std::uint8_t{0};
    if (type == "f16x2" || type == "bf16x2") return std::uint8_t{4};
    if (type == "bf16") return std::uint8_t{2};
    int bits = 0;
    if (type.size() < 2 || std::string_view("busf").find(type[0]) == std::string_view::npos) return {};
    std::from_chars(type.data() + 1, type.data() + type.size(), bits);
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64) return {};
    return static_cast<std::uint8_t>(bits / 8);
}

/// Returns an immediate's bits: 42, -1, 0x1F, 0f3F800000, 0d3FF0000000000000.
std::optional<std::uint64_t> immediate(std::string_view text) {
    const bool is_negative = !text.empty() && text[0] == '-';
    if (is_negative) text.remove_prefix(1);
    if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return {};
    int base = 10;
    if (text.size() > 2 && text[0] == '0' &&
        std::string_view("xXfFdD").find(text[1]) != std::string_view::npos) {
        base = 16;
        text.remove_prefix(2);
    }
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value, base);
    return is_negative ? ~value + 1 : value;
}

std::size_t aligned(std::size_t at, std::size_t to) {
    return (at + to - 1) / to * to;
}

/// ".param .align 8 .b8 name[64]" or ".shared ... name[64]", ".global ... name[3] = {1, 2, 3}"
struct Variable {
    std::string_view name, values;
    std::size_t align = 1, n_bytes = 0;
};

Variable variable_of(std::string_view statement) {
    Variable variable;
    std::size_t element = 1;
    const std::size_t equals = statement.find('=');
    if (equals != std::string_view::npos) variable.values = trimmed(statement.substr(equals + 1));
    std::string_view left = statement.substr(0, equals);
    while (!left.empty() && left[0] == '.') {
        const std::string_view word = take_word(left);
        if (word == ".align")
            variable.align = static_cast<std::size_t>(std::atoi(std::string(take_word(left)).c_str()));
        else if (const auto bytes = bytes_of(word))
            element = *bytes;
    }
    variable.name = take_word(left);
    variable.align = std::max(variable.align, element);
    variable.n_bytes = element;
    if (!left.empty() && left[0] == '[')
        variable.n_bytes =
            element * static_cast<std::size_t>(std::atoll(std::string(left.substr(1)).c_str()));
    return variable;
}

/// "_ZN7keyhole4cuda10run_kernelINS0_7AddNormEEEvT_" -> "AddNorm"
std::string kernel_name(const std::string& mangled) {
    int status = 0;
    char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    std::string name = text != nullptr ? text : mangled;
    std::free(text);
    for (const std::string_view drop : {"void ", "keyhole::cuda::"})
        for (std::size_t at; (at = name.find(drop)) != std::string::npos;) name.erase(at, drop.size());
    if (name.rfind("run_kernel<", 0) == 0)
        name = trimmed(std::string_view(name).substr(11, name.rfind(">(") - 11));
    return name;
}

}  // namespace

// --- the whole text ----------------------------------------------------------------------------------------

Program::Program(std::string text) : text_(std::move(text)) {
    const std::size_t target = text_.find(".target sm_");
    if (target == std::string::npos) throw Fault("this is no PTX: it has no .target");
    capability_ = std::atoi(text_.c_str() + target + 11);
    find_files();
    blank_comments(text_);
    find_functions();
}

void Program::find_files() {
    for (std::size_t at = text_.find("\n\t.file"); at != std::string::npos;
         at = text_.find("\n\t.file", at + 1)) {
        std::string_view line = std::string_view(text_).substr(at + 7, text_.find('\n', at + 1) - at - 7);
        const int number = std::atoi(std::string(take_word(line)).c_str());
        std::string name(line.substr(1, line.rfind('"') - 1));
        files_[number] = name.substr(name.rfind('/') + 1);
    }
}

void Program::find_functions() {
    const std::string_view text = text_;
    std::size_t at = 0, first = 0;  // of the directive under way
    while ((at = text.find_first_of(";{\n", at)) != std::string_view::npos) {
        const std::string_view head = trimmed(text.substr(first, at - first));
        const auto starts = [&](std::string_view with) { return head.rfind(with, 0) == 0; };
        if (text[at] == '\n') {  // directives of one line
            for (const char* line : {".version", ".target", ".address_size", ".file"})
                if (starts(line)) first = at + 1;
            ++at;
            continue;
        }
        if (text[at] == ';') {
            add_global(head);
            first = ++at;
            continue;
        }
        int depth = 1;
        std::size_t end = at + 1;
        for (; depth > 0 && end < text.size(); ++end)
            depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
        if (head.find('=') != std::string_view::npos) {  // a global's values
            at = end;
            continue;
        }
        const std::size_t entry = head.find(".entry"), func = head.find(".func");
        if (entry != std::string_view::npos || func != std::string_view::npos) {
            Function function;
            function.is_kernel = entry != std::string_view::npos;
            function.head = head.substr(function.is_kernel ? entry + 6 : func + 5);
            function.body = text.substr(at + 1, end - at - 2);
            function.line =
                1 + static_cast<int>(std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n'));
            std::string_view left = function.head;
            if (!left.empty() && trimmed(left)[0] == '(')  // the result
                left = left.substr(left.find(')') + 1);
            const std::string name(take_word(left));
            functions_[name] = function;
            if (function.is_kernel) names_.push_back(name);
        }
        first = at = end;
    }
}

void Program::add_global(std::string_view statement) {
    const std::size_t at = statement.find_first_of(".");
    if (at != 0 || statement.find("[") == std::string_view::npos) return;
    if (statement.rfind(".extern", 0) == 0 || statement.rfind(".func", 0) == 0) return;
    for (const char* prefix : {".visible", ".weak"})
        if (statement.rfind(prefix, 0) == 0) statement = trimmed(statement.substr(std::strlen(prefix)));
    if (statement.rfind(".global", 0) != 0 && statement.rfind(".const", 0) != 0) return;
    const Variable variable = variable_of(statement);
    std::vector<std::byte> bytes(variable.n_bytes);
    if (!variable.values.empty()) {
        const auto values = split(variable.values.substr(1, variable.values.rfind('}') - 1), ',');
        const std::size_t element = statement.find(".b8") != std::string_view::npos    ? 1
                                    : statement.find(".b16") != std::string_view::npos ? 2
                                    : statement.find("64") != std::string_view::npos   ? 8
                                                                                       : 4;
        for (std::size_t i = 0; i < values.size() && (i + 1) * element <= bytes.size(); ++i) {
            const std::uint64_t value = immediate(values[i]).value_or(0);
            std::memcpy(bytes.data() + i * element, &value, element);
        }
    }
    globals_.emplace(variable.name, std::move(bytes));
}

const std::byte* Program::global(std::string_view name) const {
    const auto found = globals_.find(name);
    return found == globals_.end() ? nullptr : found->second.data();
}

bool Program::is_global(const std::byte* at, std::size_t n) const {
    for (const auto& [name, bytes] : globals_)
        if (at >= bytes.data() && at + n <= bytes.data() + bytes.size()) return true;
    return false;
}

/// ".loc 2 21 49, function_name ..., inlined_at 12 171 5" -> "kernels/linear.h:21 < rows.h:171"
int Program::source_of(std::string_view loc) {
    loc = trimmed(loc);
    if (const auto known = source_index_.find(loc); known != source_index_.end()) return known->second;
    const auto place = [&](std::string_view numbers) {
        const std::string file(take_word(numbers)), line(take_word(numbers));
        const auto found = files_.find(std::atoi(file.c_str()));
        return (found == files_.end() ? "?" : found->second) + ":" + line;
    };
    std::string_view numbers = loc.substr(4);
    std::string text = place(numbers);
    const std::size_t outer = loc.find("inlined_at");
    if (outer != std::string_view::npos) text += " < " + place(loc.substr(outer + 10));
    const auto index = static_cast<int>(sources_.size());
    sources_.push_back(text);
    source_index_.emplace(loc, index);
    return index;
}

// --- a kernel ----------------------------------------------------------------------------------------------

/// Decodes one kernel.
class Decoder {
  public:
    Decoder(Program& program, const Program::Function& function, const std::string& name)
        : program_(program) {
        kernel_.name = kernel_name(name);
        kernel_.register_bytes = Special::n_special * kRegister32;
        scratch_ = room(8);
        Frame frame;
        std::string_view head = function.head.substr(function.head.find('('));
        for (const std::string_view param : split(head.substr(1, head.find(')') - 1), ',')) {
            const Variable variable = variable_of(param);
            kernel_.param_bytes = aligned(kernel_.param_bytes, variable.align);
            symbols_[std::string(variable.name)] = kernel_.param_bytes;
            params_.push_back(std::string(variable.name));
            kernel_.param_offsets.push_back(kernel_.param_bytes);
            kernel_.param_sizes.push_back(variable.n_bytes);
            kernel_.param_bytes += variable.n_bytes;
        }
        const std::size_t most = function.head.find(".maxntid");
        if (most != std::string_view::npos)
            kernel_.max_threads =
                static_cast<unsigned>(std::atoi(std::string(function.head.substr(most + 8)).c_str()));
        decode(function, frame);
    }
    std::unique_ptr<Kernel> take() { return std::make_unique<Kernel>(std::move(kernel_)); }

  private:
    struct Register {
        std::uint32_t at;
        std::uint8_t size;
    };
    struct Scope {
        std::map<std::string, std::uint8_t, std::less<>> declared;  // "%r" of %r<3>, or a name
        std::map<std::string, Register, std::less<>> registers;
    };
    /// A function on its way: the kernel, or one that is expanded in it.
    struct Frame {
        Frame* caller = nullptr;
        std::vector<Scope> scopes;
        std::map<std::string, std::string, std::less<>> passed;  // a parameter's name -> the caller's
        std::map<std::string, Register, std::less<>> params;     // "param0+0"
        std::map<std::string, std::int32_t, std::less<>> labels;
        std::vector<std::pair<std::size_t, std::string>> branches;
    };
    struct Address {
        std::uint32_t at = Op::kNone;
        std::uint8_t size = 0;
        std::int64_t offset = 0;
        std::string_view symbol;
    };

    [[noreturn]] void fail(std::string_view why) const {
        throw Fault(fmt::format("{}, line {} of the PTX: {}: \"{}\"", kernel_.name, line_, why, statement_));
    }

    std::uint32_t room(std::uint8_t size) {
        const std::size_t bytes = size == 0 ? 8 : std::size_t{size} * kLanes;
        const std::size_t at = kernel_.register_bytes;
        kernel_.register_bytes += bytes;
        return static_cast<std::uint32_t>(at);
    }

    void decode(const Program::Function& function, Frame& frame) {
        frame.scopes.emplace_back();
        std::string_view left = function.body;
        line_ = function.line;
        const auto skip = [&](std::size_t n) {
            line_ += static_cast<int>(std::count(left.begin(), left.begin() + std::ptrdiff_t(n), '\n'));
            left.remove_prefix(n);
        };
        while (true) {
            skip(std::min(left.size(), left.find_first_not_of(kBlank)));
            if (left.empty()) break;
            if (left[0] == '{' || left[0] == '}') {
                if (left[0] == '{')
                    frame.scopes.emplace_back();
                else
                    frame.scopes.pop_back();
                skip(1);
            } else if (left.rfind(".loc\t", 0) == 0 || left.rfind(".loc ", 0) == 0) {
                const std::size_t end = std::min(left.size(), left.find('\n'));
                source_ = program_.source_of(left.substr(0, end));
                skip(end);
            } else {
                const std::size_t end = std::min(left.size(), left.find_first_of(";:"));
                const std::string_view text = trimmed(left.substr(0, end));
                if (end < left.size() && left[end] == ':' && std::all_of(text.begin(), text.end(), is_word)) {
                    frame.labels[std::string(text)] = next();
                    skip(end + 1);
                    continue;
                }
                const std::size_t all = std::min(left.size(), left.find(';'));
                statement_ = trimmed(left.substr(0, all));
                decode_statement(frame);
                skip(std::min(left.size(), all + 1));
            }
        }
        frame.labels["$return"] = next();
        for (const auto& [op, label] : frame.branches) {
            const auto found = frame.labels.find(label);
            if (found == frame.labels.end()) fail("there is no label " + label);
            kernel_.ops[op].target = found->second;
        }
        if (frame.caller == nullptr) add({}).kind = Kind::exit;
    }

    std::int32_t next() const { return static_cast<std::int32_t>(kernel_.ops.size()); }

    Op& add(Op op) {
        op.line = line_;
        op.source = source_;
        op.text = statement_;
        kernel_.ops.push_back(op);
        return kernel_.ops.back();
    }

    void decode_statement(Frame& frame) {
        if (statement_.empty() || statement_.rfind(".pragma", 0) == 0) return;
        if (statement_[0] == '.') return declare(frame);
        std::string_view left = statement_;
        Op op;
        if (left[0] == '@') {
            op.guard_inverted = left[1] == '!';
            left.remove_prefix(op.guard_inverted ? 2 : 1);
            op.guard = register_of(frame, take_word(left)).at;
        }
        const std::string_view name = take_word(left);
        if (name.rfind("call", 0) == 0) return expand(frame, left);
        decode_operation(frame, op, name, split(left, ','));
    }

    void declare(Frame& frame) {
        std::string_view left = statement_;
        const std::string_view what = take_word(left);
        if (what == ".reg") {
            const auto bytes = bytes_of(take_word(left));
            if (!bytes) fail("unknown type of registers");
            for (const std::string_view name : split(left, ','))
                frame.scopes.back().declared[std::string(name.substr(0, name.find('<')))] = *bytes;
        } else if (what == ".shared" || what == ".local") {
            const Variable variable = variable_of(statement_);
            std::size_t& bytes = what == ".shared" ? kernel_.shared_bytes : kernel_.local_bytes;
            bytes = aligned(bytes, variable.align);
            symbols_[std::string(variable.name)] = bytes;
            bytes += variable.n_bytes;
        } else if (what != ".param") {
            fail("unknown directive");
        }
    }

    /// Expands a call: "(retval0), name, (param0, param1)". Results and parameters are registers.
    void expand(Frame& frame, std::string_view operands) {
        const auto parts = split(operands, ',');
        const bool has_result = parts[0][0] == '(';
        const std::string name(parts.at(has_result ? 1 : 0));
        std::vector<std::string_view> given;
        if (parts.size() > (has_result ? 2u : 1u)) {
            const std::string_view list = parts.back();
            given = split(list.substr(1, list.size() - 2), ',');
        }
        if (name == "vprintf") return call_print(frame, given);
        const auto found = program_.functions_.find(name);
        if (found == program_.functions_.end()) fail("there is no function " + name);
        Frame inner;
        inner.caller = &frame;
        std::string_view head = found->second.head;
        if (has_result) {
            const std::string_view list = trimmed(head);
            inner.passed[std::string(variable_of(list.substr(1, list.find(')') - 1)).name)] =
                parts[0].substr(1, parts[0].size() - 2);
            head = list.substr(list.find(')') + 1);
        }
        head = head.substr(head.find('(') + 1);
        const auto names = split(head.substr(0, head.find(')')), ',');
        for (std::size_t i = 0; i < names.size() && i < given.size(); ++i)
            inner.passed[std::string(variable_of(names[i]).name)] = given[i];
        const int line = line_;
        if (++depth_ > 8) fail("functions call each other too deeply");
        decode(found->second, inner);
        --depth_;
        line_ = line;
    }

    void call_print(Frame& frame, const std::vector<std::string_view>& given) {
        Op op;
        op.run = print;
        for (std::size_t i = 0; i < 2; ++i) op.at[i] = param_of(frame, given.at(i), 0, 8).at;
        add(op);
        param_of(frame, "retval0", 0, 4);
    }

    Register register_of(Frame& frame, std::string_view name) {
        const std::string_view stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
        for (std::size_t i = frame.scopes.size(); i-- > 0;) {
            Scope& scope = frame.scopes[i];
            if (const auto known = scope.registers.find(name); known != scope.registers.end())
                return known->second;
            auto declared = scope.declared.find(name);
            if (declared == scope.declared.end()) declared = scope.declared.find(stem);
            if (declared == scope.declared.end()) continue;
            const Register made{room(declared->second), declared->second};
            scope.registers.emplace(name, made);
            return made;
        }
        fail(fmt::format("there is no register {}", name));
    }

    Register param_of(Frame& frame, std::string_view name, std::int64_t offset, std::uint8_t size) {
        if (const auto passed = frame.passed.find(name); passed != frame.passed.end())
            return param_of(*frame.caller, passed->second, offset, size);
        const auto [place, is_new] = frame.params.try_emplace(fmt::format("{}+{}", name, offset));
        if (is_new || place->second.size != size) place->second = {room(size), size};
        return place->second;
    }

    static std::optional<std::uint32_t> special(std::string_view name) {
        static const std::map<std::string_view, Special> known = {
            {"%tid.x", tid_x},       {"%ntid.x", ntid_x},     {"%ctaid.x", ctaid_x},
            {"%ctaid.y", ctaid_y},   {"%ctaid.z", ctaid_z},   {"%nctaid.x", nctaid_x},
            {"%nctaid.y", nctaid_y}, {"%nctaid.z", nctaid_z}, {"%laneid", laneid}};
        const auto found = known.find(name);
        if (found == known.end()) return {};
        return found->second * kRegister32;
    }

    /// Returns the value of a variable's name: its place in its space, or a global's address.
    std::optional<std::uint64_t> symbol(std::string_view name) const {
        if (const auto found = symbols_.find(name); found != symbols_.end()) return found->second;
        if (const std::byte* at = program_.global(name)) return reinterpret_cast<std::uint64_t>(at);
        return {};
    }

    std::uint32_t constant(std::uint64_t bits, std::uint8_t size) {
        if (size == 0) bits = bits != 0 ? ~0u : 0;
        const auto [place, is_new] = constants_.try_emplace({size, bits});
        if (is_new) {
            const std::size_t at = kernel_.constants.size(), width = size == 0 ? 8 : size;
            kernel_.constants.resize(at + (size == 0 ? 8 : std::size_t{size} * kLanes));
            for (std::size_t i = at; i < kernel_.constants.size(); i += width)
                std::memcpy(kernel_.constants.data() + i, &bits, width);
            place->second = static_cast<std::uint32_t>(at) | 1u;
        }
        return place->second;
    }

    /// Returns the operand's register; that of a constant has the wanted size.
    Register operand(Frame& frame, std::string_view text, std::uint8_t wanted) {
        if (text == "_") return {scratch_, wanted};
        if (text[0] == '%') {
            if (const auto at = special(text)) return {*at, 4};
            return register_of(frame, text);
        }
        const std::uint8_t size = wanted == Operation::kAnySize ? std::uint8_t{8} : wanted;
        if (const auto bits = immediate(text)) return {constant(*bits, size), size};
        if (const auto value = symbol(text)) return {constant(*value, size), size};
        return register_of(frame, text);
    }

    Address address_of(Frame& frame, std::string_view text) {
        if (text.size() < 3 || text[0] != '[') fail("an address is missing");
        text = trimmed(text.substr(1, text.size() - 2));
        Address address;
        const std::size_t plus = text.find('+');
        if (plus != std::string_view::npos)
            address.offset = static_cast<std::int64_t>(immediate(trimmed(text.substr(plus + 1))).value_or(0));
        const std::string_view base = trimmed(text.substr(0, plus));
        if (base[0] == '%') {
            const Register at = register_of(frame, base);
            address.at = at.at;
            address.size = at.size;
        } else if (const auto bits = immediate(base)) {
            address.offset += static_cast<std::int64_t>(*bits);
        } else {
            address.symbol = base;
            if (const auto value = symbol(base)) address.offset += static_cast<std::int64_t>(*value);
        }
        return address;
    }

    void set_address(Op& op, const Address& address) {
        op.address = address.at;
        op.address_bytes = address.size;
        op.offset = address.offset;
    }

    static std::vector<std::string_view> flattened(std::string_view operand) {
        if (operand[0] != '{') return {operand};
        return split(operand.substr(1, operand.size() - 2), ',');
    }

    void decode_operation(Frame& frame, Op op, std::string_view name,
                          const std::vector<std::string_view>& operands) {
        const auto parts = split(name, '.');
        const std::string_view first = parts[0];
        if (first == "ld" || first == "st") return decode_access(frame, op, parts, operands);
        if (first == "atom" || first == "red") return decode_atomic(frame, op, parts, operands);
        if (first == "bra") {
            op.kind = Kind::branch;
            frame.branches.emplace_back(kernel_.ops.size(), operands.at(0));
            add(op);
            return;
        }
        if (first == "ret" || first == "exit") {
            op.kind = frame.caller != nullptr && first == "ret" ? Kind::branch : Kind::exit;
            if (op.kind == Kind::branch) frame.branches.emplace_back(kernel_.ops.size(), "$return");
            add(op);
            return;
        }
        if (first == "cvt") return decode_conversion(frame, op, parts, operands);
        if (first == "cvta") return decode_cvta(frame, op, parts, operands);
        if (first == "ldmatrix") return decode_ldmatrix(frame, op, name, operands);
        if (first == "mov" && operands.size() == 2 && (operands[0][0] == '{' || operands[1][0] == '{'))
            return decode_pack(frame, op, operands);
        decode_listed(frame, op, name, operands);
    }

    static Space space_of(const std::vector<std::string_view>& parts) {
        for (const std::string_view part : parts) {
            if (part == "global") return Space::global;
            if (part == "const") return Space::generic;
            if (part == "local") return Space::local;
            if (part == "param" || part == "param::entry" || part == "param::func") return Space::param;
            if (part.rfind("shared", 0) == 0) return Space::shared;
        }
        return Space::generic;
    }

    /// Loads and stores. Hints for caches have no effect here.
    void decode_access(Frame& frame, Op op, const std::vector<std::string_view>& parts,
                       const std::vector<std::string_view>& operands) {
        static constexpr std::string_view kKnown[] = {
            "weak",        "volatile", "relaxed", "gpu",   "cta", "sys", "ca",     "cg",
            "cs",          "cv",       "lu",      "wb",    "wt",  "nc",  "global", "shared",
            "shared::cta", "local",    "param",   "const", "v2",  "v4"};
        for (std::size_t i = 1; i + 1 < parts.size(); ++i)
            if (std::find(std::begin(kKnown), std::end(kKnown), parts[i]) == std::end(kKnown) &&
                parts[i].rfind("L1::", 0) != 0 && parts[i].rfind("L2::", 0) != 0)
                fail("unknown instruction");
        const bool loads = parts[0] == "ld";
        const auto bytes = bytes_of(parts.back());
        if (operands.size() != 2 || !bytes || *bytes == 0) fail("unknown instruction");
        const auto values = flattened(operands[loads ? 0 : 1]);
        const Address address = address_of(frame, operands[loads ? 1 : 0]);
        op.space = space_of(parts);
        op.read_only = std::find(parts.begin(), parts.end(), "nc") != parts.end();
        op.bytes = *bytes;
        op.n_elements = static_cast<std::uint8_t>(values.size());
        const bool is_passed = op.space == Space::param && !address.symbol.empty() &&
                               symbols_.find(address.symbol) == symbols_.end();
        for (std::size_t i = 0; i < values.size(); ++i) {
            const Register value = operand(frame, values[i], op.bytes);
            op.at[i] = value.at;
            op.size[i] = value.size;
            if (value.size != op.size[0]) fail("registers of several sizes");
        }
        set_address(op, address);
        if (is_passed) return decode_passing(frame, op, address, loads);
        op.run =
            loads ? load_of(op.bytes, parts.back()[0] == 's', op.size[0]) : store_of(op.bytes, op.size[0]);
        if (op.run == nullptr) fail("unknown instruction");
        add(op);
    }

    /// A parameter or a result of a function that is expanded: a register.
    void decode_passing(Frame& frame, Op op, const Address& address, bool loads) {
        for (std::size_t i = 0; i < op.n_elements; ++i) {
            const auto offset = address.offset + static_cast<std::int64_t>(i * op.bytes);
            const Register param = param_of(frame, address.symbol, offset, op.bytes);
            if (param.size != op.size[i]) fail("a parameter of another size");
            Op move = op;
            move.at[0] = loads ? op.at[i] : param.at;
            move.at[1] = loads ? param.at : op.at[i];
            move.run = find_operation(param.size == 8   ? "mov.b64"
                                      : param.size == 4 ? "mov.b32"
                                                        : "mov.b16")
                           ->run;
            add(move);
        }
    }

    void decode_atomic(Frame& frame, Op op, const std::vector<std::string_view>& parts,
                       const std::vector<std::string_view>& operands) {
        const bool gives = parts[0] == "atom";
        op.space = space_of(parts);
        std::string_view operation;
        for (std::size_t i = 1; i + 1 < parts.size(); ++i) {
            const std::string_view part = parts[i];
            if (part == "acquire" || part == "acq_rel") op.mode |= 1;  // as a fence after it
            if (part == "release" || part == "acq_rel") op.mode |= 2;  // as a fence before it
            for (const char* known : {"inc", "dec", "add", "min", "max", "exch", "cas", "and", "or", "xor"})
                if (part == known) operation = part;
        }
        op.run = atomic_of(operation, parts.back());
        if (op.run == nullptr) fail("unknown instruction");
        op.bytes = *bytes_of(parts.back());
        op.at[0] = gives ? operand(frame, operands.at(0), op.bytes).at : scratch_;
        set_address(op, address_of(frame, operands.at(gives ? 1 : 0)));
        for (std::size_t i = gives ? 2 : 1, to = 1; i < operands.size(); ++i, ++to)
            op.at[to] = operand(frame, operands[i], op.bytes).at;
        add(op);
    }

    void decode_conversion(Frame& frame, Op op, const std::vector<std::string_view>& parts,
                           const std::vector<std::string_view>& operands) {
        std::string rounding;
        bool saturates = false;
        for (std::size_t i = 1; i + 2 < parts.size(); ++i) {
            if (parts[i] == "sat")
                saturates = true;
            else
                rounding += parts[i];
        }
        op.run = conversion_of(parts.at(parts.size() - 2), parts.back(), rounding, saturates);
        if (op.run == nullptr) fail("unknown instruction");
        for (std::size_t i = 0; i < operands.size(); ++i) {
            const Register at =
                operand(frame, operands[i], *bytes_of(parts[parts.size() - (i == 0 ? 2 : 1)]));
            op.at[i] = at.at;
            op.size[i] = at.size;
        }
        add(op);
    }

    /// Between an address of a space and a generic one.
    void decode_cvta(Frame& frame, Op op, const std::vector<std::string_view>& parts,
                     const std::vector<std::string_view>& operands) {
        const Space space = space_of(parts);
        if (space == Space::param || parts.back() != "u64") fail("unknown instruction");
        std::uint64_t base = space == Space::shared ? kSharedBase : space == Space::local ? kLocalBase : 0;
        if (parts.at(1) == "to") base = ~base + 1;
        op.at[0] = operand(frame, operands.at(0), 8).at;
        op.at[1] = operand(frame, operands.at(1), 8).at;
        op.at[2] = constant(base, 8);
        op.run = find_operation("add.s64")->run;
        add(op);
    }

    void decode_ldmatrix(Frame& frame, Op op, std::string_view name,
                         const std::vector<std::string_view>& operands) {
        const auto values = flattened(operands.at(0));
        const std::string form = fmt::format("ldmatrix.sync.aligned.m8n8.x{}", values.size());
        const bool transposes = name == form + ".trans.shared.b16";
        if (!transposes && name != form + ".shared.b16") fail("unknown instruction");
        for (std::size_t i = 0; i < values.size(); ++i) op.at[i] = operand(frame, values[i], 4).at;
        op.n_elements = static_cast<std::uint8_t>(values.size());
        op.bytes = 16;
        op.space = Space::shared;
        op.mode = transposes;
        op.kind = Kind::collective;
        op.run = load_matrices;
        set_address(op, address_of(frame, operands.at(1)));
        add(op);
    }

    /// mov of a vector into one register, or back.
    void decode_pack(Frame& frame, Op op, const std::vector<std::string_view>& operands) {
        const bool packs = operands[1][0] == '{';
        const auto parts = flattened(operands[packs ? 1 : 0]);
        const Register whole = register_of(frame, operands[packs ? 0 : 1]);
        const auto size = static_cast<std::uint8_t>(whole.size / parts.size());
        op.at[0] = whole.at;
        for (std::size_t i = 0; i < parts.size(); ++i) op.at[i + 1] = operand(frame, parts[i], size).at;
        const Operation* operation = find_operation(
            fmt::format("{}.{}x{}", packs ? "pack" : "unpack", parts.size(), 8 * static_cast<int>(size)));
        if (operation == nullptr) fail("unknown instruction");
        op.run = operation->run;
        add(op);
    }

    static bool parts_with_members(std::string_view name) {
        return name == "bar.warp.sync" || name.rfind("shfl.sync", 0) == 0 || name.rfind("vote.sync", 0) == 0;
    }

    /// An operation of the table.
    void decode_listed(Frame& frame, Op op, std::string_view name,
                       const std::vector<std::string_view>& operands) {
        std::vector<std::string_view> flat;
        for (const std::string_view text : operands)
            for (const std::string_view one : flattened(text)) flat.push_back(one);
        if (name == "bar.sync" || name == "barrier.sync" || name == "barrier.sync.aligned") {
            if (flat.size() != 1 || flat[0] != "0") fail("only barrier 0 of all threads is known");
            op.kind = Kind::barrier;
            add(op);
            return;
        }
        std::string key(name);
        if (const std::size_t bar = flat.empty() ? 0 : flat[0].find('|'); bar != 0 && bar < flat[0].size()) {
            key += "|p";  // a register and a predicate, which comes before the last operand here
            flat.insert(flat.end() - 1, flat[0].substr(bar + 1));
            flat[0] = flat[0].substr(0, bar);
        }
        const Operation* operation = find_operation(key);
        if (operation == nullptr) fail("unknown instruction");
        if (flat.size() != operation->sizes.size()) fail("an unknown number of operands");
        op.run = operation->run;
        op.kind = operation->kind;
        op.mode = operation->mode;
        op.n_elements = static_cast<std::uint8_t>(flat.size());
        op.names_members = parts_with_members(name);
        kernel_.syncs_warps = kernel_.syncs_warps || name == "bar.warp.sync";
        for (std::size_t i = 0; i < flat.size(); ++i) {
            const std::uint8_t wanted = operation->sizes[i];
            const Register at = operand(frame, flat[i], wanted);
            if (wanted != Operation::kAnySize && at.size != wanted) fail("a register of another size");
            op.at[i] = at.at;
            op.size[i] = at.size;
        }
        add(op);
    }

    Program& program_;
    Kernel kernel_;
    std::map<std::string, std::uint64_t, std::less<>> symbols_;
    std::vector<std::string> params_;
    std::map<std::pair<std::uint8_t, std::uint64_t>, std::uint32_t> constants_;
    std::uint32_t scratch_ = 0;
    std::string_view statement_;
    int line_ = 0, source_ = -1, depth_ = 0;
};

const Kernel& Program::kernel(const std::string& name) {
    std::unique_ptr<Kernel>& decoded = decoded_[name];
    if (decoded == nullptr) {
        const auto found = functions_.find(name);
        if (found == functions_.end() || !found->second.is_kernel)
            throw Fault(fmt::format("the PTX has no kernel {}", kernel_name(name)));
        decoded = Decoder(*this, found->second, name).take();
    }
    return *decoded;
}

}  // namespace ptx

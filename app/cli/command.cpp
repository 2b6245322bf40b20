#include "app/cli/command.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

/// Returns a validator for CLI::Option::transform: the text must be one number from low to high.
template <class Number>
CLI::Validator number_in(Number low, Number high) {
    CLI::Validator validator;
    validator.description(high == kHighest<Number> ? fmt::format("{} or more", low)
                                                   : fmt::format("{} to {}", low, high));
    validator.operation([low, high](std::string& text) {
        const auto value = number_from_text<Number>(text, low, high);
        if (!value) return no_number<Number>(text, low, high);
        text = fmt::format("{}", *value);  // CLI11 parses the text again, and would read 010 as octal
        return std::string();
    });
    return validator;
}

std::string no_word(const std::string& text, std::span<const std::string> words) {
    const std::vector<std::string_view> known(words.begin(), words.end());
    const auto near = spec_text::near_word(text, known);
    return fmt::format("'{}' is none of {}{}", shown_text(text), fmt::join(words, ", "),
                       near ? fmt::format(" (did you mean {}?)", *near) : "");
}

std::string fault_of_path(const std::string& name) {
    return name.empty() ? "the name is empty; name a file or folder, or leave the option out" : "";
}

/// Writes the help in a form of ours.
class FormOfHelp : public CLI::Formatter {
  public:
    explicit FormOfHelp(const HelpForm& form) : form_(form) {
        label("Positionals", "Arguments");
        label("SUBCOMMAND", "COMMAND");
    }
    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
        std::string text = make_description(app) + make_usage(app, std::move(name)) + make_positionals(app);
        const CliCommand command(const_cast<CLI::App*>(app));
        for (const std::string& group : form_.groups(command)) {
            const auto options = app->get_options([&](const CLI::Option* option) {
                return option->nonpositional() && option->get_group() == group;
            });
            if (!options.empty()) text += make_group(group, false, options);
        }
        return text + make_subcommands(app, mode) + "\n" + make_footer(app);
    }
    std::string make_option(const CLI::Option* option, bool) const override {
        return form_.option_row(CliOption(const_cast<CLI::Option*>(option)));
    }
    std::string make_subcommand(const CLI::App* command) const override {
        return form_.command_row(CliCommand(const_cast<CLI::App*>(command)));
    }
    std::string make_group(std::string group, bool is_positional,
                           std::vector<const CLI::Option*> options) const override {
        std::string text = fmt::format("\n{}:\n", group);
        for (const CLI::Option* option : options) text += make_option(option, is_positional);
        return text;
    }

  private:
    const HelpForm& form_;
};

}  // namespace

// --- options -----------------------------------------------------------------------------------------------

CliOption CliOption::required() const {
    return CliOption(option_->required());
}

CliOption CliOption::repeated() const {
    // Without the last, it would take the words that follow too.
    return CliOption(option_->expected(1)->take_all()->allow_extra_args(false));
}

CliOption CliOption::comma_list() const {
    return CliOption(option_->delimiter(',')->allow_extra_args(false));
}

CliOption CliOption::shows_default() const {
    return CliOption(option_->capture_default_str());
}

CliOption CliOption::hidden() const {
    return set_group("");
}

CliOption CliOption::one_of(std::vector<std::string> words) const {
    CLI::Validator validator;
    validator.description(fmt::format("{{{}}}", fmt::join(words, ",")));
    validator.operation([all = std::move(words)](const std::string& text) {
        return std::ranges::find(all, text) == all.end() ? no_word(text, all) : std::string();
    });
    return CliOption(option_->check(validator));
}

CliOption CliOption::within(int low, int high) const {
    return CliOption(option_->transform(number_in(low, high)));
}

CliOption CliOption::within(double low, double high) const {
    return CliOption(option_->transform(number_in(low, high)));
}

CliOption CliOption::from(int low) const {
    return within(low, kHighest<int>);
}

CliOption CliOption::natural() const {
    return CliOption(option_->transform(number_in<std::uint64_t>(0, kHighest<std::uint64_t>)));
}

CliOption CliOption::some_path() const {
    return CliOption(option_->check(CLI::Validator(&fault_of_path, "")));
}

CliOption CliOption::rewritten(std::string (*function)(std::string_view)) const {
    CLI::Validator validator;
    validator.operation([function](std::string& text) {
        text = function(text);
        return std::string();
    });
    return CliOption(option_->transform(validator));
}

CliOption CliOption::needs(CliOption other) const {
    return CliOption(option_->needs(other.option_));
}

CliOption CliOption::excludes(CliOption other) const {
    return CliOption(option_->excludes(other.option_));
}

CliOption CliOption::set_help(const std::string& text) const {
    return CliOption(option_->description(text));
}

CliOption CliOption::set_group(std::string_view group) const {
    option_->group(std::string(group));
    return *this;
}

bool CliOption::is_given() const {
    return option_ != nullptr && option_->count() > 0;
}

bool CliOption::is_repeated() const {
    return option_->get_multi_option_policy() != CLI::MultiOptionPolicy::Throw;
}

int CliOption::times_given() const {
    return static_cast<int>(option_->count());
}

bool CliOption::is_argument() const {
    return option_->get_positional();
}

bool CliOption::is_required() const {
    return option_->get_required();
}

std::vector<std::string> CliOption::long_names() const {
    return option_->get_lnames();
}

std::vector<std::string> CliOption::short_names() const {
    return option_->get_snames();
}

std::string CliOption::argument_name() const {
    return option_->get_name(true);
}

std::string CliOption::name() const {
    return option_->get_name();
}

std::string CliOption::help() const {
    return option_->get_description();
}

std::string CliOption::group() const {
    return option_->get_group();
}

std::string CliOption::default_text() const {
    return option_->get_default_str();
}

std::string CliOption::names_text() const {
    return option_->nonpositional() ? option_->get_name(false, true) : option_->get_name(true, false);
}

std::string CliOption::type_text() const {
    return option_->get_type_name();
}

int CliOption::least_values() const {
    return option_->get_items_expected_min();
}

int CliOption::most_values() const {
    return option_->get_items_expected_max();
}

// --- commands ----------------------------------------------------------------------------------------------

CliCommand CliCommand::add_command(const std::string& name, const std::string& help) const {
    return CliCommand(app_->add_subcommand(name, help));
}

CliOption CliCommand::add_option(const std::string& names, std::string& value,
                                 const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_option(const std::string& names, int& value, const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_option(const std::string& names, std::uint64_t& value,
                                 const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_option(const std::string& names, std::int64_t& value,
                                 const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_option(const std::string& names, double& value, const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_option(const std::string& names, std::vector<std::string>& value,
                                 const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_option(const std::string& names, std::vector<int>& value,
                                 const std::string& help) const {
    return CliOption(app_->add_option(names, value, help));
}

CliOption CliCommand::add_flag(const std::string& names, bool& value, const std::string& help) const {
    return CliOption(app_->add_flag(names, value, help));
}

CliOption CliCommand::add_flag(const std::string& names, const std::string& help) const {
    return CliOption(app_->add_flag(names, help));
}

void CliCommand::remove(CliOption option) const {
    app_->remove_option(option.option_);
}

void CliCommand::does(std::function<void()> work) const {
    app_->callback(std::move(work));
}

std::string CliCommand::name() const {
    return app_->get_name();
}

std::string CliCommand::help() const {
    return app_->get_description();
}

std::string CliCommand::group() const {
    return app_->get_group();
}

CliCommand CliCommand::program() const {
    return CliCommand(app_->get_parent());
}

std::vector<CliCommand> CliCommand::commands() const {
    std::vector<CliCommand> all;
    for (CLI::App* one : app_->get_subcommands([](const CLI::App*) { return true; })) all.emplace_back(one);
    return all;
}

CliCommand CliCommand::command(std::string_view name) const {
    for (const CliCommand& one : commands())
        if (one.name() == name) return one;
    return {};
}

std::vector<CliOption> CliCommand::options() const {
    std::vector<CliOption> all;
    for (CLI::Option* one : app_->get_options()) all.emplace_back(one);
    return all;
}

CliOption CliCommand::option(const std::string& name) const {
    return CliOption(app_->get_option_no_throw(name));
}

CliOption CliCommand::given(std::initializer_list<const char*> names) const {
    for (const char* name : names)
        if (const CliOption one = option(name); one.is_given()) return one;
    return {};
}

std::vector<std::string> CliCommand::groups() const {
    return app_->get_groups();
}

std::string CliCommand::help_text() const {
    return app_->help("keyhole");
}

void CliCommand::set_form(const HelpForm& form, const std::string& footer) const {
    app_->formatter(std::make_shared<FormOfHelp>(form));
    app_->footer(footer);
}

void CliCommand::set_group(std::string_view group) const {
    app_->group(std::string(group));
}

CliOption CliCommand::help_option() const {
    return CliOption(app_->get_help_ptr());
}

/// Returns what is wrong if an option that takes one value stands in the arguments more than once.
static std::string fault_of_repeats(const CliCommand& command) {
    for (const CliOption one : command.options())
        if (one.times_given() > 1 && one.most_values() == 1 && !one.is_repeated())
            return fmt::format("{} is given {}", one.name(),
                               one.times_given() == 2 ? "twice" : fmt::format("{} times", one.times_given()));
    return {};
}

// --- the program -------------------------------------------------------------------------------------------

CommandLine::CommandLine(const std::string& name, const std::string& help, const std::string& version)
    : CommandLine(std::make_unique<CLI::App>(help, name)) {
    if (!version.empty()) owned_->set_version_flag("-V,--version", version);
    owned_->require_subcommand(1);
}

CommandLine::CommandLine(std::unique_ptr<CLI::App> app) : CliCommand(app.get()), owned_(std::move(app)) {}

CommandLine::~CommandLine() = default;

int CommandLine::run(std::span<const std::string> arguments) const {
    try {
        owned_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11's order
        return 0;
    } catch (const CLI::Success& success) {
        return owned_->exit(success);
    } catch (const CLI::ParseError& error) {
        const CliCommand chosen = arguments.empty() ? CliCommand() : command(arguments.front());
        const std::string repeated = chosen ? fault_of_repeats(chosen) : "";
        fail(ErrorCode::wrong_use, "{}; see keyhole {}--help", repeated.empty() ? error.what() : repeated,
             chosen ? arguments.front() + " " : "");
    }
}

}  // namespace keyhole

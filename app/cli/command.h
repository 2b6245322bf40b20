/// Commands and their options. It stands before CLI11, whose templates take the compiler long and are
/// instantiated in command.cpp alone. Main thread; knows no command of ours.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace keyhole {

/// Refers to an option or argument of a command, or to none. Valid as long as the command line.
class CliOption {
  public:
    CliOption() = default;
    explicit CliOption(CLI::Option* option) : option_(option) {}
    explicit operator bool() const { return option_ != nullptr; }
    friend bool operator==(CliOption, CliOption) = default;

    // What follows returns the option itself, so that calls can be chained.
    CliOption required() const;
    CliOption repeated() const;       ///< each time with one value; all are kept
    CliOption comma_list() const;     ///< several values in one word
    CliOption shows_default() const;  ///< the help shows the variable's value
    CliOption hidden() const;
    CliOption one_of(std::vector<std::string> words) const;
    /// The text must be one number in the range, by the parser that everything else uses: nan, hexadecimal
    /// numbers and values out of range are refused with a clear message.
    CliOption within(int low, int high) const;
    CliOption within(double low, double high) const;
    CliOption from(int low) const;
    CliOption natural() const;  ///< 0 to 2^64 - 1
    /// Refuses an empty name of a file or folder. It mostly comes from a variable of a script that was never
    /// set, and must not count as no option at all.
    CliOption some_path() const;
    /// Each value is replaced by what the function makes of it, which may throw Error.
    CliOption rewritten(std::string (*function)(std::string_view)) const;
    CliOption needs(CliOption other) const;
    CliOption excludes(CliOption other) const;
    CliOption set_help(const std::string& text) const;
    CliOption set_group(std::string_view group) const;

    /// Whether it stands in the arguments; false for none.
    bool is_given() const;
    int times_given() const;
    bool is_repeated() const;  ///< repeated() was called, or it is a flag
    bool is_argument() const;  ///< without dashes
    bool is_required() const;
    std::vector<std::string> long_names() const, short_names() const;  ///< without dashes
    std::string argument_name() const;                                 ///< "TEXT"
    std::string name() const;                                          ///< "--prompt"
    std::string help() const, group() const, default_text() const;
    std::string names_text() const;  ///< as the help shows them: "-p,--prompt"
    /// "UINT:1 to 16" or "TEXT:{auto,cpu}".
    std::string type_text() const;
    int least_values() const, most_values() const;

  private:
    friend class CliCommand;
    CLI::Option* option_ = nullptr;
};

class HelpForm;

/// Refers to a command, or to the program with all its commands, or to none.
class CliCommand {
  public:
    CliCommand() = default;
    explicit CliCommand(CLI::App* app) : app_(app) {}
    explicit operator bool() const { return app_ != nullptr; }
    friend bool operator==(CliCommand, CliCommand) = default;

    CliCommand add_command(const std::string& name, const std::string& help) const;
    /// names: "-p,--prompt", or "TEXT" for an argument. The variable must outlive the command line.
    CliOption add_option(const std::string& names, std::string& value, const std::string& help) const;
    CliOption add_option(const std::string& names, int& value, const std::string& help) const;
    CliOption add_option(const std::string& names, std::uint64_t& value, const std::string& help) const;
    CliOption add_option(const std::string& names, std::int64_t& value, const std::string& help) const;
    CliOption add_option(const std::string& names, double& value, const std::string& help) const;
    CliOption add_option(const std::string& names, std::vector<std::string>& value,
                         const std::string& help) const;
    CliOption add_option(const std::string& names, std::vector<int>& value, const std::string& help) const;
    CliOption add_flag(const std::string& names, bool& value, const std::string& help) const;
    /// A flag that CliOption::is_given() tells of.
    CliOption add_flag(const std::string& names, const std::string& help) const;
    void remove(CliOption option) const;
    /// What the chosen command does.
    void does(std::function<void()> work) const;

    std::string name() const, help() const, group() const;
    CliCommand program() const;                       ///< none for the program itself
    std::vector<CliCommand> commands() const;         ///< in the order of --help
    CliCommand command(std::string_view name) const;  ///< none if there is no such command
    std::vector<CliOption> options() const;
    /// names: one name, with its dashes. Returns none if the command has no such option.
    CliOption option(const std::string& name) const;
    /// Returns the first of the options that stands in the arguments; none if none does.
    CliOption given(std::initializer_list<const char*> names) const;
    std::vector<std::string> groups() const;  ///< of its options
    std::string help_text() const;

    /// footer: what stands below all options. The form must outlive the command line.
    void set_form(const HelpForm& form, const std::string& footer) const;
    void set_group(std::string_view group) const;
    CliOption help_option() const;

  private:
    CLI::App* app_ = nullptr;
};

/// How the help of a command is written.
class HelpForm {
  public:
    virtual ~HelpForm() = default;
    virtual std::string option_row(CliOption option) const = 0;
    virtual std::string command_row(CliCommand command) const = 0;
    /// Returns the groups of the command's options in the order shown.
    virtual std::vector<std::string> groups(CliCommand command) const = 0;
};

/// The program's command line, one of whose commands must be chosen.
class CommandLine : public CliCommand {
  public:
    /// version: what --version prints; empty: there is no such option.
    CommandLine(const std::string& name, const std::string& help, const std::string& version = "");
    ~CommandLine();
    CommandLine(const CommandLine&) = delete;
    CommandLine& operator=(const CommandLine&) = delete;

    /// Does what the arguments say, or prints the help or the version, and returns the exit status. Throws
    /// Error(wrong_use) if they are wrong, and what the command throws.
    int run(std::span<const std::string> arguments) const;

  private:
    explicit CommandLine(std::unique_ptr<CLI::App> app);

    std::unique_ptr<CLI::App> owned_;
};

}  // namespace keyhole

/// The figures of the papers in the window: a card of each, what was made of it so far, and the making of
/// one, which is `keyhole figure` in a process of its own. Window thread.
#pragma once

#include "app/base/figure_record.h"
#include "app/state/child_job.h"

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A figure or table of a paper, as `keyhole figure --list` describes it.
struct PaperCard {
    std::string name = {};          ///< "tova-3"; the paper stands before the dash
    std::string title = {};         ///< what it shows
    std::string finding = {};       ///< of the paper
    std::string paper_values = {};  ///< numbers that the paper prints; empty: none
    std::string seen_on = {};       ///< the model that shows the effect
    std::string command = {};       ///< the whole command line, with OUT for the folder
    double minutes = 0;             ///< about, on the shipped model and two cores
    bool makeable = true;           ///< false: another command makes it, which the user has to complete
    std::string paper() const { return name.substr(0, name.find('-')); }
    /// The command names its models, so that none can be chosen.
    bool has_models() const { return command.find("--model ") != std::string::npos; }
};

/// The files that were made of a figure on a model.
struct MadeFigure {
    std::string model;  ///< its name in the folder
    std::filesystem::path folder;
    FigureRecord record;
};

class PaperFigures {
  public:
    std::vector<PaperCard> cards;   ///< in the order of the list
    std::filesystem::path folder;   ///< for all that is made; empty: none is known
    std::filesystem::path program;  ///< the program that has the command figure
    std::string enlarged;           ///< card whose pictures fill the page; empty: the list

    /// Reads the figures in the folder. A figure that cannot be read counts as not made.
    void list_made();
    /// Returns what was made of a card by the last list_made(), sorted by model.
    const std::vector<MadeFigure>& made(std::size_t card) const;

    /// Makes a figure in the background, and replaces what was made of it on this model. model: what
    /// `--model` takes; empty where the card has models. wake: called on any thread. Throws
    /// Error(wrong_use) for an unknown name, for a card that is not makeable, and while another is made.
    void make(std::string_view name, std::string_view model, std::function<void()> wake);
    void cancel() { job_.cancel(); }

    bool running() const { return job_.running(); }
    /// Returns the name and the model of the figure that is being made, or was made last.
    const std::string& wanted() const { return wanted_; }
    const std::string& wanted_model() const { return wanted_model_; }
    double seconds() const { return job_.seconds(); }
    /// Returns true while one is made, and once after it, when the folder has been read again.
    bool refresh();
    /// Returns why the last one was not made; empty if it was.
    std::string fault() const { return job_.fault(); }

  private:
    std::vector<std::vector<MadeFigure>> made_;  // by card
    std::string wanted_, wanted_model_;
    ChildJob job_;
};

/// Returns the command line of a card for this folder and model, word by word, without the program.
std::vector<std::string> words_of(const PaperCard& card, std::string_view model,
                                  const std::filesystem::path& out);

}  // namespace keyhole

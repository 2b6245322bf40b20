#include "app/cli/data_arguments.h"

#include "engine/base/error.h"

namespace keyhole {

void BeamArguments::add(const CliCommand& command) {
    command
        .add_option("--beams", settings.n_beams,
                    "beams of a beam search in every lane; 1: the most likely token each time")
        .within(1, kMostBeams)
        .shows_default();
    command
        .add_option(
            "--beam-scores", scores,
            "`apart`: every beam evicts by its own scores (the paper); `shared`: all beams of a lane by "
            "the sum of theirs (Keyformer's released code)")
        .one_of({"apart", "shared"})
        .shows_default();
    command
        .add_option("--length-penalty", settings.length_penalty,
                    "beams: a text of n tokens scores its log probability / n^penalty")
        .within(-10.0, 10.0)
        .shows_default();
    command.add_flag("--early-stopping", settings.early_stopping,
                     "beams: the search ends once as many texts as beams are finished");
}

BeamSettings BeamArguments::parsed() const {
    BeamSettings parsed = settings;
    parsed.scores = scores == "shared" ? BeamScores::shared : BeamScores::apart;
    if (parsed.n_beams == 1 && parsed != BeamSettings{})
        fail(ErrorCode::wrong_use,
             "--beam-scores, --length-penalty and --early-stopping are for a beam search; give --beams 2 or "
             "more with them");
    return parsed;
}

void DataArguments::add(const CliCommand& command) {
    command
        .add_option(
            "--data", files,
            "file of your own questions (- for standard input): each line is a JSON object with system, "
            "context, prompt, references, choices, target, answer, spans (keyhole help eval-and-sweep); "
            "repeat for several")
        .repeated();
    command.add_option("--few-shot", few_shot, "data: file whose first examples stand before each question");
    command.add_option("--shots", n_shots, "data: how many examples").within(0, 1000);
    command.add_option("--answer-tokens", answer_tokens, "data: most tokens of an answer (default: 64)")
        .within(1, 1 << 16);
    command
        .add_option("--until", until,
                    "data: where an answer ends besides the model's end of text: with its first `line`, or "
                    "`text` for nowhere else")
        .one_of({"line", "text"})
        .shows_default();
    command.add_flag("--cut", cut, "data: a prompt that is too long loses its beginning");
    command.add_flag("--stems", stems, "data: ROUGE compares stems (use_stemmer of rouge-score)");
    command.add_flag("--last-number", last_number,
                     "data: an answer is right if its last number is that of a reference, as a chain of "
                     "reasoning ends with its result; the table also has the length of the answers");
    add_token_rules(command, rules);
    beams.add(command);
}

DataOptions DataArguments::options(const std::string& file, int n_context, int n_samples) const {
    if (few_shot.empty() != (n_shots == 0))
        fail(ErrorCode::wrong_use, "--few-shot FILE and --shots K belong together; give both or none");
    DataOptions options;
    options.file = file;
    options.few_shot = few_shot;
    options.n_shots = n_shots;
    options.n_questions = n_samples;
    options.context = n_context;
    options.cut = cut;
    if (answer_tokens > 0) options.answer_tokens = answer_tokens;
    options.to_end_of_line = until == "line";
    options.stems = stems;
    options.last_number = last_number;
    options.n_before = n_before;
    options.rules = rules;
    options.beams = beams.parsed();
    return options;
}

void DataArguments::check_unused() const {
    const bool is_used = !few_shot.empty() || n_shots > 0 || answer_tokens > 0 || until != "line" || cut ||
                         stems || last_number || rules != Sampling{} || !answers.empty() ||
                         beams.parsed() != BeamSettings{};
    if (is_used)
        fail(ErrorCode::wrong_use,
             "--few-shot, --shots, --answer-tokens, --until, --cut, --stems, --last-number, --answers, "
             "--beams and the rules of tokens are for your own questions; give --data FILE with them");
}

}  // namespace keyhole

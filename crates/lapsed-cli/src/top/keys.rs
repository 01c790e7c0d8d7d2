//! What each key does, decided from the model alone. Actions that change something must be confirmed, and a real
//! pass is offered only while a dry run of the same system is shown.

use lapsed_core::SystemId;
use lapsed_core::sweep::PassMode;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::FeedRequest;
use super::model::{TopModel, TopView, Typing, is_dry_run_of};
use lapsed_server::node::BrakeOrder;

/// What the main loop must do after a key.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyAction {
    Nothing,
    Quit,
    Ask(FeedRequest),
}

const HELP: &[&str] = &[
    "up, down, j, k    select a system, or scroll",
    "Enter             its last passes, its store, its brake",
    "e                 explain a key: why it is, or is not, dead",
    "d                 dry run: what a pass would reclaim, and why",
    "s                 the real pass, after a dry run",
    "h, o, a           hold the brake, override it for one pass, make it automatic",
    "/                 show only receipts with a text; empty shows all",
    "Esc               back",
    "q, Ctrl-C         quit",
];

/// Changes the view; returns what the main loop must do.
pub fn press(model: &mut TopModel, key: KeyEvent) -> KeyAction {
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return KeyAction::Quit;
    }
    match std::mem::replace(&mut model.view, TopView::Main) {
        TopView::Typing { what, text } => typed(model, what, text, key.code),
        TopView::Confirm { question, order } => confirmed(model, question, order, key.code),
        view => {
            model.view = view;
            plain(model, key.code)
        }
    }
}

fn plain(model: &mut TopModel, code: KeyCode) -> KeyAction {
    model.message = None;
    match code {
        KeyCode::Char('q') => return KeyAction::Quit,
        KeyCode::Up | KeyCode::Char('k') => step(model, -1),
        KeyCode::Down | KeyCode::Char('j') => step(model, 1),
        KeyCode::PageUp => step(model, -10),
        KeyCode::PageDown => step(model, 10),
        KeyCode::Enter if !model.systems.is_empty() => model.view = TopView::Details,
        KeyCode::Esc => model.view = TopView::Main,
        KeyCode::Char('?') => {
            model.show("keys", HELP.iter().map(|line| (*line).to_owned()).collect());
        }
        KeyCode::Char('/') => {
            let text = model.filter.clone();
            model.view = TopView::Typing { what: Typing::Filter, text };
        }
        KeyCode::Char(letter) => return order(model, letter),
        _ => {}
    }
    KeyAction::Nothing
}

/// Handles a letter that acts on the selected system.
fn order(model: &mut TopModel, letter: char) -> KeyAction {
    let Some(id) = model.id() else { return KeyAction::Nothing };
    let brake = |order, what: &str| TopView::Confirm {
        question: format!("{what} the brake of {id}?"),
        order: FeedRequest::Brake(id.clone(), order),
    };
    match letter {
        'e' => model.view = TopView::Typing { what: Typing::Key, text: String::new() },
        'd' => return dry_run(model, id),
        's' => real_pass(model, id),
        'h' => model.view = brake(BrakeOrder::Hold, "Hold"),
        'o' => model.view = TopView::Typing { what: Typing::Reason, text: String::new() },
        'a' => model.view = brake(BrakeOrder::Auto, "Free"),
        _ => {}
    }
    KeyAction::Nothing
}

fn dry_run(model: &mut TopModel, id: SystemId) -> KeyAction {
    model.message = Some(format!("dry run of {id} ..."));
    KeyAction::Ask(FeedRequest::Pass(id, PassMode::DryRun))
}

fn real_pass(model: &mut TopModel, id: SystemId) {
    if !is_dry_run_of(&model.view, &id) {
        model.message = Some("`d` first: a real pass follows a dry run".to_owned());
        return;
    }
    let question = format!("Run a real pass of {id}?");
    model.view = TopView::Confirm { question, order: FeedRequest::Pass(id, PassMode::Reclaim) };
}

/// Selects another system, or scrolls a text.
fn step(model: &mut TopModel, by: isize) {
    let last = model.systems.len().saturating_sub(1);
    match &mut model.view {
        TopView::Text { lines, top, .. } => {
            *top = top.saturating_add_signed(by).min(lines.len().saturating_sub(1));
        }
        _ => model.selected = model.selected.saturating_add_signed(by).min(last),
    }
}

fn typed(model: &mut TopModel, what: Typing, mut text: String, code: KeyCode) -> KeyAction {
    match code {
        KeyCode::Esc => return KeyAction::Nothing,
        KeyCode::Enter => return entered(model, what, text),
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(letter) => text.push(letter),
        _ => {}
    }
    model.view = TopView::Typing { what, text };
    KeyAction::Nothing
}

fn entered(model: &mut TopModel, what: Typing, text: String) -> KeyAction {
    match (what, model.id()) {
        (Typing::Filter, _) => model.filter = text,
        (Typing::Key, Some(id)) if !text.is_empty() => {
            model.message = Some(format!("asking about {text} ..."));
            return KeyAction::Ask(FeedRequest::Explain(id, text));
        }
        (Typing::Reason, Some(id)) if !text.trim().is_empty() => {
            model.view = TopView::Confirm {
                question: format!("{} Override the brake of {id}?", model.would_reclaim()),
                order: FeedRequest::Brake(id, BrakeOrder::Override { reason: text }),
            };
        }
        (Typing::Key | Typing::Reason, _) => {}
    }
    KeyAction::Nothing
}

/// Carries out the confirmed action on `y`; any other key cancels it.
fn confirmed(
    model: &mut TopModel,
    question: String,
    order: FeedRequest,
    code: KeyCode,
) -> KeyAction {
    if code == KeyCode::Char('y') {
        model.message = Some("asking the daemon ...".to_owned());
        return KeyAction::Ask(order);
    }
    model.message = Some(format!("left as it is: {question}"));
    KeyAction::Nothing
}
